package ddpgorgonia

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) {
	if err := UseBLAS(cpu.New(&cpu.Options{Threads: 1})); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.Main(m, map[string]func(){"die": func() { comm.Main(die) }})
}

// network is a graph with every kind of learnable: matrices, one of which is used twice (w1) and
// one also elementwise in the cost (w2); biases that are broadcast and whose gradients are equal
// (b0, b1); and a scalar (s).
type network struct {
	g          *G.ExprGraph
	x, y       *G.Node
	learnables G.Nodes
	cost       *G.Node
	costValue  G.Value
	predicted  G.Value
}

const width = 6

// newNetwork returns the inputs and the learnables, whose first values depend on seed.
func newNetwork(dt tensor.Dtype, rows, seed int) *network {
	g := G.NewGraph()
	n := &network{g: g}
	n.x = G.NewMatrix(g, dt, G.WithName("x"), G.WithShape(rows, width))
	n.y = G.NewMatrix(g, dt, G.WithName("y"), G.WithShape(rows, width))
	for i, name := range []string{"w2", "b0", "w0", "b1", "w1"} { // not the order in which the graph uses them
		rows := width
		if name[0] == 'b' {
			rows = 1
		}
		n.learnables = append(n.learnables, G.NewMatrix(g, dt, G.WithName(name), G.WithShape(rows, width), G.WithValue(values(dt, seed+i, 0, rows, width))))
	}
	var s any = G.NewF64(1.5)
	if dt == tensor.Float32 {
		s = G.NewF32(1.5)
	}
	n.learnables = append(n.learnables, G.NewScalar(g, dt, G.WithName("s"), G.WithValue(s)))
	return n
}

// build builds the cost from use of each learnable.
func (n *network) build(use func(*G.Node) *G.Node) {
	param := func(name string) *G.Node { return use(n.g.ByName(name)[0]) }
	h := G.Must(G.BroadcastAdd(G.Must(G.Mul(n.x, param("w0"))), param("b0"), nil, []byte{0}))
	h = G.Must(G.BroadcastAdd(h, param("b1"), nil, []byte{0}))
	h = G.Must(G.Tanh(h))
	h = G.Must(G.Tanh(G.Must(G.Mul(h, param("w1")))))
	h = G.Must(G.Mul(G.Must(G.Mul(h, param("w1"))), G.Must(G.Transpose(param("w2")))))
	h = G.Must(G.HadamardProd(h, param("s")))
	d := G.Must(G.Sub(h, n.y))
	n.cost = G.Must(G.Add(
		G.Must(G.Mean(G.Must(G.Square(d)))),
		G.Must(G.Mean(G.Must(G.Square(param("w2")))))))
	G.Read(n.cost, &n.costValue)
	G.Read(h, &n.predicted)
}

// let sets the inputs to a rank's part of a step's batch.
func (n *network) let(step, rank, size int) error {
	rows := n.x.Shape()[0]
	from := (step*size + rank) * rows * width
	return errors.Join(
		G.Let(n.x, values(n.x.Dtype(), 100, from, rows, width)),
		G.Let(n.y, values(n.x.Dtype(), 101, from, rows, width)))
}

// grads returns the learnables' gradients.
func (n *network) grads() (all [][]float64) {
	for _, l := range n.learnables {
		g, err := l.Grad()
		if err != nil {
			panic(err)
		}
		all = append(all, floats(g))
	}
	return all
}

// params returns the learnables' values.
func (n *network) params() (all [][]float64) {
	for _, l := range n.learnables {
		all = append(all, floats(l.Value()))
	}
	return all
}

// plain returns the network with one of Gorgonia's machines.
func plain(t *testing.T, dt tensor.Dtype, rows int, opts ...G.VMOpt) (*network, G.VM) {
	t.Helper()
	n := newNetwork(dt, rows, 0)
	err := Build(func() error {
		n.build(itself)
		_, err := G.Grad(n.cost, n.learnables...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, G.NewTapeMachine(n.g, opts...)
}

// distributed returns the network as a model, on one rank.
func distributed(pg *comm.ProcessGroup, dt tensor.Dtype, rows int, opts *Options, vmOpts ...G.VMOpt) (n *network, m *Model, vm *Machine, err error) {
	Build(func() error {
		n = newNetwork(dt, rows, 10*pg.Rank()) // New replaces the values by those of rank 0
		return nil
	})
	if m, err = New(pg, n.learnables, opts); err != nil {
		return nil, nil, nil, err
	}
	Build(func() error {
		n.build(m.Use)
		return nil
	})
	vm, err = m.NewTapeMachine(n.cost, vmOpts...)
	return n, m, vm, err
}

// itself returns w, for graphs of a single process.
func itself(w *G.Node) *G.Node { return w }

// value returns element i of a pseudorandom sequence in (-1, 1).
func value(sequence, i int) float64 {
	v := math.Sin(float64(i+1)*12.9898+float64(sequence)*78.233) * 43758.5453
	return 2*(v-math.Floor(v)) - 1
}

// values returns a tensor with elements of the sequence, starting at from.
func values(dt tensor.Dtype, sequence, from int, shape ...int) *tensor.Dense {
	d := tensor.New(tensor.Of(dt), tensor.WithShape(shape...))
	for i := range d.Shape().TotalSize() {
		if v := value(sequence, from+i); dt == tensor.Float32 {
			d.Float32s()[i] = float32(v)
		} else {
			d.Float64s()[i] = v
		}
	}
	return d
}

// floats returns a copy of v's elements.
func floats(v G.Value) (out []float64) {
	switch x := v.(type) {
	case *G.F64:
		return []float64{float64(*x)}
	case *G.F32:
		return []float64{float64(*x)}
	case *tensor.Dense:
		if x.Dtype() == tensor.Float64 {
			return append(out, x.Float64s()...)
		}
		for _, v := range x.Float32s() {
			out = append(out, float64(v))
		}
		return out
	}
	panic(fmt.Sprintf("floats of %T", v))
}

// near returns an error unless all elements are equal within the tolerance, relative to elements
// larger than 1.
func near(got, want [][]float64, tolerance float64) error {
	for i := range want {
		for j, w := range want[i] {
			if g := got[i][j]; !(math.Abs(g-w) <= tolerance*max(1, math.Abs(w))) {
				return fmt.Errorf("learnable %d, element %d: %v, want %v", i, j, g, w)
			}
		}
	}
	return nil
}
