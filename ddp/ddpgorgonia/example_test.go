package ddpgorgonia_test

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/ddpgorgonia"
)

// step makes one training step of the graph cost = sum(x·w).
func step(pg *comm.ProcessGroup) error {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float32, G.WithShape(1, 2), G.WithName("x"), G.WithInit(G.Ones()))
	w := G.NewMatrix(g, tensor.Float32, G.WithShape(2, 1), G.WithName("w"), G.WithInit(G.Ones()))
	model, err := ddpgorgonia.New(pg, G.Nodes{w}, nil)
	if err != nil {
		return err
	}
	cost := G.Must(G.Sum(G.Must(G.Mul(x, model.Use(w))))) // model.Use(w) in place of w
	vm, err := model.NewTapeMachine(cost)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := vm.RunAll(); err != nil { // averages the gradient over the ranks
		return err
	}
	solver := G.NewVanillaSolver(G.WithLearnRate(0.5))
	if err := solver.Step(G.NodesToValueGrads(G.Nodes{w})); err != nil {
		return err
	}
	fmt.Println("cost", cost.Value(), "then w is", w.Value().Data())
	return nil
}

func Example() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer groups[0].Close()
	if err := step(groups[0]); err != nil {
		fmt.Println(err)
	}
	// Output: cost 2 then w is [0.5 0.5]
}
