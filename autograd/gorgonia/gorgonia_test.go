package gorgonia

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device/cpu"
)

// workerMode makes this test binary a worker that runs the named program.
const workerMode = "GODDP_TEST_WORKER"

var workers = map[string]func(context.Context) error{}

func TestMain(m *testing.M) {
	if worker, ok := workers[os.Getenv(workerMode)]; ok {
		comm.Main(worker)
	}
	if err := UseBLAS(cpu.New(&cpu.Options{Threads: 1})); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// ranks runs f on n ranks of this process.
func ranks(t *testing.T, n int, f func(pg *comm.ProcessGroup) error) []error {
	t.Helper()
	groups, err := comm.Local(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, pg := range groups {
		wg.Go(func() {
			defer pg.Close()
			errs[r] = f(pg)
		})
	}
	wg.Wait()
	return errs
}

// all fails the test for each error.
func all(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// value is element i of a sequence that looks random, within (-1, 1).
func value(sequence, i int) float64 {
	v := math.Sin(float64(i+1)*12.9898+float64(sequence)*78.233) * 43758.5453
	return 2*(v-math.Floor(v)) - 1
}

// dense is a tensor of such elements, from one on.
func values(dt tensor.Dtype, sequence, from int, shape ...int) *tensor.Dense {
	d := tensor.New(tensor.Of(dt), tensor.WithShape(shape...))
	for i := range d.Shape().TotalSize() {
		switch v := value(sequence, from+i); dt {
		case tensor.Float32:
			d.Float32s()[i] = float32(v)
		default:
			d.Float64s()[i] = v
		}
	}
	return d
}

// floats are d's elements.
func floats(v G.Value) []float64 {
	switch x := v.(type) {
	case *G.F64:
		return []float64{float64(*x)}
	case *G.F32:
		return []float64{float64(*x)}
	case *tensor.Dense:
		if x.Dtype() == tensor.Float64 {
			return x.Float64s()
		}
		var out []float64
		for _, v := range x.Float32s() {
			out = append(out, float64(v))
		}
		return out
	}
	panic(fmt.Sprintf("floats of %T", v))
}

// network is a model that has a learnable of every kind: matrices, one of which
// is used twice, biases that are broadcast, one that is the same gradient's as
// another, a scalar, and a term of the cost that is elementwise in a matrix.
type network struct {
	g          *G.ExprGraph
	x, y       *G.Node
	learnables G.Nodes
	cost       *G.Node
	costValue  G.Value
	predicted  G.Value
}

const width = 6

func newNetwork(dt tensor.Dtype, batch int, seed int) *network {
	g := G.NewGraph()
	n := &network{g: g}
	n.x = G.NewMatrix(g, dt, G.WithName("x"), G.WithShape(batch, width))
	n.y = G.NewMatrix(g, dt, G.WithName("y"), G.WithShape(batch, width))
	for i, name := range []string{"w0", "w1", "w2"} {
		n.learnables = append(n.learnables, G.NewMatrix(g, dt, G.WithName(name), G.WithShape(width, width), G.WithValue(values(dt, seed+i, 0, width, width))))
	}
	for i, name := range []string{"b0", "b1"} {
		n.learnables = append(n.learnables, G.NewMatrix(g, dt, G.WithName(name), G.WithShape(1, width), G.WithValue(values(dt, seed+3+i, 0, 1, width))))
	}
	var one any = G.NewF64(1.5)
	if dt == tensor.Float32 {
		one = G.NewF32(1.5)
	}
	n.learnables = append(n.learnables, G.NewScalar(g, dt, G.WithName("s"), G.WithValue(one)))
	return n
}

// build builds the cost from the learnables, or from what stands for them.
func (n *network) build(ps G.Nodes) {
	w0, w1, w2, b0, b1, s := ps[0], ps[1], ps[2], ps[3], ps[4], ps[5]
	h := G.Must(G.BroadcastAdd(G.Must(G.Mul(n.x, w0)), b0, nil, []byte{0}))
	h = G.Must(G.BroadcastAdd(h, b1, nil, []byte{0}))
	h = G.Must(G.Tanh(h))
	h = G.Must(G.Tanh(G.Must(G.Mul(h, w1))))
	h = G.Must(G.Mul(G.Must(G.Mul(h, w1)), G.Must(G.Transpose(w2)))) // w1 again
	h = G.Must(G.HadamardProd(h, s))
	d := G.Must(G.Sub(h, n.y))
	n.cost = G.Must(G.Add(
		G.Must(G.Mean(G.Must(G.Square(d)))),
		G.Must(G.Mean(G.Must(G.Square(w2))))))
	G.Read(n.cost, &n.costValue)
	G.Read(h, &n.predicted)
}

// let sets the inputs to rank's part of batch number step, of batch rows a rank.
func (n *network) let(step, rank, size int) error {
	rows := n.x.Shape()[0]
	from := (step*size + rank) * rows * width
	return errors.Join(
		G.Let(n.x, values(n.x.Dtype(), 100, from, rows, width)),
		G.Let(n.y, values(n.x.Dtype(), 101, from, rows, width)))
}

// trainPlain trains without this package on the concatenated batches, and returns
// the costs and the learnables' values.
func trainPlain(t *testing.T, dt tensor.Dtype, rows, steps int, solver G.Solver) (costs []float64, learnables [][]float64) {
	t.Helper()
	n := newNetwork(dt, rows, 0)
	n.build(n.learnables)
	if _, err := G.Grad(n.cost, n.learnables...); err != nil {
		t.Fatal(err)
	}
	vm := G.NewTapeMachine(n.g, G.BindDualValues(n.learnables...))
	defer vm.Close()
	for step := range steps {
		if err := n.let(step, 0, 1); err != nil {
			t.Fatal(err)
		}
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		costs = append(costs, floats(n.costValue)[0])
		if err := solver.Step(G.NodesToValueGrads(n.learnables)); err != nil {
			t.Fatal(err)
		}
		vm.Reset()
	}
	for _, l := range n.learnables {
		learnables = append(learnables, floats(l.Value()))
	}
	return costs, learnables
}

func near(got, want, tolerance float64) bool {
	return math.Abs(got-want) <= tolerance*math.Max(1, math.Abs(want))
}

var solvers = map[string]func() G.Solver{
	"SGD":      func() G.Solver { return G.NewVanillaSolver(G.WithLearnRate(0.1)) },
	"Momentum": func() G.Solver { return G.NewMomentum(G.WithLearnRate(0.05)) },
	"Adam":     func() G.Solver { return G.NewAdamSolver(G.WithLearnRate(0.01)) },
	"RMSProp":  func() G.Solver { return G.NewRMSPropSolver(G.WithLearnRate(0.01)) },
}

// Several ranks train as one process does on the concatenated batch, with each of
// Gorgonia's solvers that is right, to the same bits on all ranks.
func TestTrainsAsOneProcess(t *testing.T) {
	const rows, steps = 4, 5
	for _, c := range []struct {
		dt        tensor.Dtype
		tolerance float64
	}{{tensor.Float64, 1e-9}, {tensor.Float32, 1e-5}} {
		for _, size := range []int{1, 2, 4} {
			for name, solver := range solvers {
				t.Run(fmt.Sprint(c.dt, "/", size, "/", name), func(t *testing.T) {
					wantCosts, want := trainPlain(t, c.dt, rows*size, steps, solver())
					got := make([][][]float64, size)
					all(t, ranks(t, size, func(pg *comm.ProcessGroup) error {
						var n *network
						Build(func() error {
							n = newNetwork(c.dt, rows, 10*pg.Rank()) // rank 0's count
							return nil
						})
						m, err := New(pg, n.learnables, &Options{BucketCapMB: 1e-4})
						if err != nil {
							return err
						}
						Build(func() error { n.build(m.Params()); return nil })
						vm, err := m.NewTapeMachine(n.cost)
						if err != nil {
							return err
						}
						defer vm.Close()
						solver := solver()
						for step := range steps {
							if err := n.let(step, pg.Rank(), size); err != nil {
								return err
							}
							if err := vm.RunAll(); err != nil {
								return err
							}
							costs, err := comm.AllGatherObject(t.Context(), pg, floats(n.costValue)[0])
							if err != nil {
								return err
							}
							var mean float64
							for _, c := range costs {
								mean += c / float64(size)
							}
							if !near(mean, wantCosts[step], c.tolerance) {
								return fmt.Errorf("step %d: cost %v, want %v", step, mean, wantCosts[step])
							}
							if err := solver.Step(G.NodesToValueGrads(n.learnables)); err != nil {
								return err
							}
							vm.Reset()
						}
						for i, l := range n.learnables {
							vs := append([]float64(nil), floats(l.Value())...)
							got[pg.Rank()] = append(got[pg.Rank()], vs)
							for j, v := range vs {
								if !near(v, want[i][j], 10*c.tolerance) {
									return fmt.Errorf("%s[%d] is %v, want %v", l.Name(), j, v, want[i][j])
								}
							}
						}
						return nil
					}))
					for r := range got {
						if fmt.Sprint(got[r]) != fmt.Sprint(got[0]) {
							t.Errorf("rank %d ends with %v, rank 0 with %v", r, got[r], got[0])
						}
					}
				})
			}
		}
	}
}

var _ = strings.Contains
