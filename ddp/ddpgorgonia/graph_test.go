package ddpgorgonia

import (
	"bytes"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"math"
	"strings"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// faulty is an identity that calls do, and whose hashes the test chooses.
type faulty struct {
	op
	node, opHash string // the inputs of the node's hash and of the operation's hash
	do           func() error
}

func (o *faulty) String() string        { return "faulty" }
func (o *faulty) WriteHash(h hash.Hash) { h.Write([]byte(o.node)) }
func (o *faulty) Hashcode() uint32      { return uint32(len(o.opHash)) }
func (o *faulty) DiffWRT(int) []bool    { return []bool{true} }

func (o *faulty) SymDiff(_ G.Nodes, _, grad *G.Node) (G.Nodes, error) { return G.Nodes{grad}, nil }

func (o *faulty) Do(in ...G.Value) (G.Value, error) { return in[0], o.do() }

// If the tape of one rank fails, the step fails on all ranks, and the next step works.
func TestFailedTapeFailsOnAllRanks(t *testing.T) {
	var want [2][][]float64
	for rank := range want {
		var err error
		if want[rank], err = gradients(tensor.Float64, 4, func(n *network) error { return n.let(2, rank, 2) }); err != nil {
			t.Fatal(err)
		}
	}
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		step := 0
		var n *network
		Build(func() error { n = newNetwork(tensor.Float64, 4, 0); return nil })
		m, err := New(pg, n.learnables, &Options{BucketCapMB: 1e-6})
		if err != nil {
			return err
		}
		Build(func() error {
			n.build(m.Use)
			n.cost = G.Must(G.ApplyOp(&faulty{node: "faulty", opHash: "faulty", do: func() error {
				if step == 1 && pg.Rank() == 1 {
					return errors.New("no luck")
				}
				return nil
			}}, n.cost))
			return nil
		})
		vm, err := m.NewTapeMachine(n.cost)
		if err != nil {
			return err
		}
		defer vm.Close()
		for ; step < 3; step++ {
			err := errors.Join(n.let(step, pg.Rank(), 2), vm.RunAll())
			if step == 1 {
				var missing *reducer.MissingGradientError
				if !errors.As(err, &missing) || len(missing.Missing) != 1 || missing.Missing[0].Rank != 1 || !strings.Contains(err.Error(), "no luck") {
					return fmt.Errorf("step 1: got %v", err)
				}
				continue // without a Reset
			}
			if err != nil {
				return err
			}
			vm.Reset()
		}
		average := make([][]float64, len(want[0]))
		for i := range average {
			for j := range want[0][i] {
				average[i] = append(average[i], (want[0][i][j]+want[1][i][j])/2)
			}
		}
		return near(n.grads(), average, 1e-9)
	})
}

// mistaken is a hook that panics.
type mistaken struct{}

func (mistaken) Reduce(reducer.GradBucket) reducer.Reduction { panic("a mistake") }

// If an operation panics on the tape, RunAll panics on the caller's goroutine, and the log has the
// stack.
func TestTapePanicReachesCaller(t *testing.T) {
	var log bytes.Buffer
	commtest.OnGoroutines(t, 1, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) (err error) {
		n, _, vm, err := distributed(pg, tensor.Float64, 4, &Options{BucketCapMB: 1e-6, Hook: mistaken{}})
		if err != nil {
			return err
		}
		defer vm.Close()
		defer func() {
			if got := recover(); got != "a mistake" {
				err = fmt.Errorf("RunAll panics with %v", got)
			}
		}()
		return errors.Join(n.let(0, 0, 1), vm.RunAll(), errors.New("it did not panic"))
	})
	if !strings.Contains(log.String(), "mistaken.Reduce") {
		t.Errorf("no stack in the log:\n%s", &log)
	}
}

func TestGradientsThatAreNotFinite(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		n, _, vm, err := distributed(pg, tensor.Float64, 4, &Options{CheckNonFinite: true})
		if err != nil {
			return err
		}
		defer vm.Close()
		if err := n.let(0, pg.Rank(), 2); err != nil {
			return err
		}
		if pg.Rank() == 1 {
			n.y.Value().(*tensor.Dense).Float64s()[0] = math.NaN()
		}
		var found *reducer.NonFiniteError
		if err := vm.RunAll(); !errors.As(err, &found) || found.Found[0].Rank != 1 {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// RunAll refuses gradients that the machine copies before they are reduced. Gorgonia's own machine
// cannot compute a model's gradients.
func TestRunAllRefusesCopiedGradients(t *testing.T) {
	for name, opt := range map[string]func(*network) G.VMOpt{
		"BindDualValues":  func(n *network) G.VMOpt { return G.BindDualValues(n.learnables...) },
		"TraceExec":       func(*network) G.VMOpt { return G.TraceExec() },
		"not the model's": nil,
	} {
		commtest.OnGoroutines(t, 1, nil, func(pg *comm.ProcessGroup) error {
			n := newNetwork(tensor.Float64, 4, 0)
			m, err := New(pg, n.learnables, nil)
			if err != nil {
				return err
			}
			n.build(m.Use)
			if opt == nil {
				vm, err := m.NewTapeMachine(n.cost)
				if err != nil {
					return err
				}
				own := G.NewTapeMachine(n.g)
				if err := errors.Join(n.let(0, 0, 1), own.RunAll()); err == nil || !strings.Contains(err.Error(), errNoPass.Error()) {
					return fmt.Errorf("%s: got %v, want %v", name, err, errNoPass)
				}
				return errors.Join(own.Close(), vm.Close())
			}
			vm, err := m.NewTapeMachine(n.cost, opt(n))
			if err != nil {
				return err
			}
			defer vm.Close()
			var refused *GraphError
			if err := errors.Join(n.let(0, 0, 1), vm.RunAll()); !errors.As(err, &refused) {
				return fmt.Errorf("%s: got %v, want a GraphError", name, err)
			}
			return nil
		})
	}
}

// If a model cannot train a graph, NewTapeMachine returns an error on all ranks that names the
// node.
func TestGraphErrors(t *testing.T) {
	same := func(opHash string) *faulty { return &faulty{node: "same", opHash: opHash} }
	for _, c := range []struct {
		want  string
		build func(n *network, m *Model)
	}{
		{`"w1" is used directly: build the graph with model.Use(w)`, func(n *network, m *Model) {
			n.build(func(w *G.Node) *G.Node {
				m.Use(w)
				if w.Name() == "w1" {
					return w
				}
				return m.Use(w)
			})
		}},
		{`"s" is a learnable that the graph does not use: build the graph with model.Use(w)`, func(n *network, m *Model) {
			n.build(func(w *G.Node) *G.Node {
				if w.Name() == "s" {
					return G.Must(G.Mean(n.y))
				}
				return m.Use(w)
			})
		}},
		{`"cost" is the cost, but belongs to another graph than the learnables`, func(n *network, m *Model) {
			n.cost = G.NewScalar(G.NewGraph(), tensor.Float64, G.WithName("cost"))
			n.build(m.Use)
			n.cost = G.NewScalar(G.NewGraph(), tensor.Float64, G.WithName("cost"))
		}},
		{`so Gorgonia would treat them as one node`, func(n *network, m *Model) {
			n.build(m.Use)
			G.Must(G.ApplyOp(same("one"), n.cost))
			G.Must(G.ApplyOp(same("another"), n.cost))
		}},
		{`has a gradient in this graph already`, func(n *network, m *Model) {
			n.build(m.Use)
			if _, err := m.compile(n.cost, nil); err != nil {
				panic(err)
			}
		}},
	} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			var n *network
			Build(func() error { n = newNetwork(tensor.Float64, 4, 0); return nil })
			m, err := New(pg, n.learnables, nil)
			if err != nil {
				return err
			}
			Build(func() error {
				if pg.Rank() == 1 {
					c.build(n, m)
				} else {
					n.build(m.Use)
				}
				return nil
			})
			_, err = m.NewTapeMachine(n.cost)
			var refused *GraphError
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &refused) != (pg.Rank() == 1) {
				return fmt.Errorf("got %v, want %s", err, c.want)
			}
			return nil
		})
	}
	commtest.OnGoroutines(t, 1, nil, func(pg *comm.ProcessGroup) (err error) {
		n := newNetwork(tensor.Float64, 4, 0)
		m, err := New(pg, n.learnables[1:], nil)
		if err != nil {
			return err
		}
		defer func() {
			if _, ok := recover().(*GraphError); !ok {
				err = errors.New("Use of what is no learnable does not panic with a GraphError")
			}
		}()
		m.Use(n.learnables[0])
		return nil
	})
}

func TestLearnablesThatNewRefuses(t *testing.T) {
	g, other := G.NewGraph(), G.NewGraph()
	good := G.NewMatrix(g, tensor.Float64, G.WithName("good"), G.WithShape(2, 2), G.WithInit(G.Zeroes()))
	for _, c := range []struct {
		want  string
		nodes G.Nodes
	}{
		{"no learnables", nil},
		{`"good" and "far" belong to different graphs`, G.Nodes{good, G.NewScalar(other, tensor.Float64, G.WithName("far"), G.WithValue(1.0))}},
		{`"good" is given twice`, G.Nodes{good, good}},
		{`"whole" is of type int`, G.Nodes{good, G.NewVector(g, tensor.Int, G.WithName("whole"), G.WithShape(2), G.WithValue(tensor.New(tensor.WithBacking([]int{1, 2}))))}},
		{`"empty" has a value of type <nil>`, G.Nodes{good, G.NewScalar(g, tensor.Float64, G.WithName("empty"))}},
		{`"count" has a value of type *gorgonia.I, want`, G.Nodes{good, G.NewScalar(g, tensor.Int, G.WithName("count"), G.WithValue(1))}},
	} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			mine := c.nodes
			if pg.Rank() == 0 {
				mine = G.Nodes{good}
			}
			if _, err := New(pg, mine, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("got %v, want %s", err, c.want)
			}
			return nil
		})
	}
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		var n *network
		Build(func() error {
			n = newNetwork([]tensor.Dtype{tensor.Float32, tensor.Float64}[pg.Rank()], 4, 0)
			return nil
		})
		var differ *reducer.ModelMismatchError
		if _, err := New(pg, n.learnables, nil); !errors.As(err, &differ) || differ.Rank != 1 || differ.Index != 0 {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// New sets the values to those of rank 0, in place, or keeps them with SkipInitSync.
func TestInitialValues(t *testing.T) {
	for _, skip := range []bool{false, true} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			var n *network
			Build(func() error { n = newNetwork(tensor.Float64, 4, pg.Rank()); return nil })
			values := n.learnables[0].Value()
			want := floats(values)
			if !skip {
				Build(func() error { want = newNetwork(tensor.Float64, 4, 0).params()[0]; return nil })
			}
			if _, err := New(pg, n.learnables, &Options{SkipInitSync: skip}); err != nil {
				return err
			}
			if n.learnables[0].Value() != values {
				return errors.New("the learnable has another value")
			}
			return near([][]float64{floats(values)}, [][]float64{want}, 0)
		})
	}
}

// The products of UseBLAS equal gonum's, for all combinations of transposed operands, also within
// larger matrices.
func TestProducts(t *testing.T) {
	const m, n, k = 3, 4, 5
	p := products{dev: cpu.New(&cpu.Options{Threads: 1})}
	for _, ta := range []blas.Transpose{blas.NoTrans, blas.Trans} {
		for _, tb := range []blas.Transpose{blas.NoTrans, blas.Trans} {
			for _, gap := range []int{0, 2} {
				for _, beta := range []float64{0, 1, 0.5} {
					lda, ldb := k+gap, n+gap
					if ta == blas.Trans {
						lda = m + gap
					}
					if tb == blas.Trans {
						ldb = k + gap
					}
					a, b := values(tensor.Float64, 1, 0, 8, 8).Float64s(), values(tensor.Float64, 2, 0, 8, 8).Float64s()
					got, want := values(tensor.Float64, 3, 0, 8, 8).Float64s(), values(tensor.Float64, 3, 0, 8, 8).Float64s()
					p.Dgemm(ta, tb, m, n, k, 2, a, lda, b, ldb, beta, got, n+gap)
					gonum.Implementation{}.Dgemm(ta, tb, m, n, k, 2, a, lda, b, ldb, beta, want, n+gap)
					if there := gemm(p.dev, ta, tb, m, n, k, 2, a, lda, b, ldb, 0, make([]float64, 64), n+gap); there != (gap == 0) {
						t.Errorf("%c%c, gap %d: on the device: %t", ta, tb, gap, there)
					}
					if err := near([][]float64{got}, [][]float64{want}, 1e-12); err != nil {
						t.Errorf("float64, %c%c, gap %d, beta %v: %v", ta, tb, gap, beta, err)
					}
					a32, b32, got32 := float32s(a), float32s(b), float32s(values(tensor.Float64, 3, 0, 8, 8).Float64s())
					p.Sgemm(ta, tb, m, n, k, 2, a32, lda, b32, ldb, float32(beta), got32, n+gap)
					for i, v := range got32 {
						got[i] = float64(v)
					}
					if err := near([][]float64{got}, [][]float64{want}, 1e-5); err != nil {
						t.Errorf("float32, %c%c, gap %d, beta %v: %v", ta, tb, gap, beta, err)
					}
				}
			}
		}
	}
	if _, ok := G.WhichBLAS().(products); !ok {
		t.Errorf("Gorgonia uses %T", G.WhichBLAS())
	}
}

func float32s(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
