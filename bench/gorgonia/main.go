// Command gorgonia measures the overhead of package ddp/ddpgorgonia on one rank. It trains a stack of
// linear layers with biases and ReLU in four tape machines, which take turns in one process and use the
// same BLAS:
//
//	wrapped  a machine of Model.NewTapeMachine
//	bound    a machine of Gorgonia with BindDualValues, as most programs use it; it
//	         copies and accumulates each gradient
//	plain    a machine of Gorgonia without BindDualValues
//	pruned   like plain, with a program of CompileFunction that leaves out the input's gradient
//
// It prints medians in milliseconds: of RunAll with Reset, and of a step, which adds the solver's plain
// gradient descent.
//
//	go run ./bench/gorgonia --size 1000 --batch 64 --layers 3
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/ddpgorgonia"
)

var (
	size   = flag.Int("size", 1000, "width of every layer")
	batch  = flag.Int("batch", 64, "number of samples per step")
	layers = flag.Int("layers", 3, "number of linear layers")
	blocks = flag.Int("blocks", 20, "number of blocks of steps of each machine")
	steps  = flag.Int("steps", 10, "number of steps in a block")
)

// contender is one of the machines that are compared.
type contender struct {
	name       string
	vm         G.VM
	learnables G.Nodes
	solver     G.Solver
	runs, all  []time.Duration // times of RunAll with Reset, and of whole steps
}

// network makes a stack of layers. It returns the learnables, and a function that builds the cost
// from use(w) for every learnable w.
func network() (learnables G.Nodes, build func(use func(*G.Node) *G.Node) *G.Node) {
	g, dt := G.NewGraph(), tensor.Float32
	x := G.NewMatrix(g, dt, G.WithName("x"), G.WithShape(*batch, *size), G.WithInit(G.Gaussian(0, 1)))
	y := G.NewMatrix(g, dt, G.WithName("y"), G.WithShape(*batch, *size), G.WithInit(G.Gaussian(0, 1)))
	for i := range *layers {
		learnables = append(learnables,
			G.NewMatrix(g, dt, G.WithName(fmt.Sprint("w", i)), G.WithShape(*size, *size), G.WithInit(G.GlorotN(1))),
			G.NewMatrix(g, dt, G.WithName(fmt.Sprint("b", i)), G.WithShape(1, *size), G.WithInit(G.Zeroes())))
	}
	return learnables, func(use func(*G.Node) *G.Node) *G.Node {
		h := x
		for i := range *layers {
			if i > 0 {
				h = G.Must(G.Rectify(h))
			}
			h = G.Must(G.BroadcastAdd(G.Must(G.Mul(h, use(learnables[2*i]))), use(learnables[2*i+1]), nil, []byte{0}))
		}
		return G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(h, y))))))
	}
}

// newGorgonia makes a machine of Gorgonia: with BindDualValues if binds, and without the input's gradient
// if prunes.
func newGorgonia(name string, binds, prunes bool) (*contender, error) {
	learnables, build := network()
	cost := build(func(w *G.Node) *G.Node { return w })
	grads, err := G.Grad(cost, learnables...)
	if err != nil {
		return nil, err
	}
	var opts []G.VMOpt
	if binds {
		opts = append(opts, G.BindDualValues(learnables...))
	}
	if prunes {
		program, registers, err := G.CompileFunction(cost.Graph(), learnables, append(grads, cost))
		if err != nil {
			return nil, err
		}
		opts = append(opts, G.WithPrecompiled(program, registers))
	}
	return &contender{name: name, vm: G.NewTapeMachine(cost.Graph(), opts...), learnables: learnables}, nil
}

// newWrapped makes a machine of ddpgorgonia.
func newWrapped(pg *comm.ProcessGroup) (*contender, error) {
	learnables, build := network()
	m, err := ddpgorgonia.New(pg, learnables, nil)
	if err != nil {
		return nil, err
	}
	vm, err := m.NewTapeMachine(build(m.Use))
	return &contender{name: "wrapped", vm: vm, learnables: learnables}, err
}

func (c *contender) step() error {
	start := time.Now()
	if err := c.vm.RunAll(); err != nil {
		return err
	}
	c.vm.Reset()
	ran := time.Now()
	if err := c.solver.Step(G.NodesToValueGrads(c.learnables)); err != nil {
		return err
	}
	c.runs, c.all = append(c.runs, ran.Sub(start)), append(c.all, time.Since(start))
	return nil
}

func run(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	if err := ddpgorgonia.UseBLAS(pg.Device()); err != nil {
		return err
	}
	w, err := newWrapped(pg)
	if err != nil {
		return err
	}
	bound, err := newGorgonia("bound", true, false)
	if err != nil {
		return err
	}
	plain, err := newGorgonia("plain", false, false)
	if err != nil {
		return err
	}
	pruned, err := newGorgonia("pruned", false, true)
	if err != nil {
		return err
	}
	contenders := []*contender{w, bound, plain, pruned}
	for _, c := range contenders {
		c.solver = G.NewVanillaSolver(G.WithLearnRate(1e-4))
	}
	for block := range *blocks + 1 {
		for _, c := range contenders {
			runtime.GC()
			for range *steps {
				if err := c.step(); err != nil {
					return err
				}
			}
			if block == 0 { // the first block warms up
				c.runs, c.all = nil, nil
			}
		}
	}
	bytes := *layers * (*size**size + *size) * 4
	fmt.Printf("%d layers of %d, batch %d, float32: %.1f MB of gradients\n", *layers, *size, *batch, float64(bytes)/1e6)
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "machine\tRunAll ms\tto bound\tstep ms\tto bound")
	for _, c := range contenders {
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t%.2f\n", c.name, ms(c.runs), ms(c.runs)/ms(bound.runs), ms(c.all), ms(c.all)/ms(bound.all))
	}
	return table.Flush()
}

// ms returns the median in milliseconds.
func ms(times []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[len(sorted)/2].Microseconds()) / 1e3
}

func main() {
	flag.Parse()
	comm.Main(run)
}
