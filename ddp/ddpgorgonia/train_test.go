package ddpgorgonia

import (
	"bytes"
	"errors"
	"fmt"
	stdlog "log"
	"reflect"
	"regexp"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

var solvers = []struct {
	name string
	make func() G.Solver
}{
	{"SGD", func() G.Solver { return G.NewVanillaSolver(G.WithLearnRate(0.1)) }},
	{"Momentum", func() G.Solver { return G.NewMomentum(G.WithLearnRate(0.05)) }},
	{"Adam", func() G.Solver { return G.NewAdamSolver(G.WithLearnRate(0.01)) }},
	{"RMSProp", func() G.Solver { return G.NewRMSPropSolver(G.WithLearnRate(0.01)) }},
}

var precisions = []struct {
	tensor.Dtype
	tolerance float64
}{{tensor.Float64, 1e-9}, {tensor.Float32, 1e-5}}

// Several ranks train as one process of Gorgonia does with the concatenated batch, with each of
// Gorgonia's correct solvers. The ranks stay bit-identical.
func TestTrainsAsOneProcess(t *testing.T) {
	const rows, steps = 4, 5
	for _, p := range precisions {
		for _, solver := range solvers {
			if p.Dtype == tensor.Float32 && solver.name != "Adam" {
				continue
			}
			for _, size := range commtest.Sizes(t, 1, 2) {
				t.Run(fmt.Sprint(p.Dtype, "/", solver.name, "/", size), func(t *testing.T) {
					one, vm := plain(t, p.Dtype, rows*size, G.BindDualValues())
					defer vm.Close()
					var costs, params [][]float64
					s := solver.make()
					for step := range steps {
						if err := errors.Join(one.let(step, 0, 1), vm.RunAll()); err != nil {
							t.Fatal(err)
						}
						costs = append(costs, floats(one.costValue))
						if err := s.Step(G.NodesToValueGrads(one.learnables)); err != nil {
							t.Fatal(err)
						}
						vm.Reset()
					}
					params = one.params()
					commtest.OnRanks(t, size, nil, func(pg *comm.ProcessGroup) error {
						n, _, vm, err := distributed(pg, p.Dtype, rows, &Options{BucketCapMB: 1e-4})
						if err != nil {
							return err
						}
						defer vm.Close()
						s := solver.make()
						for step := range steps {
							if err := errors.Join(n.let(step, pg.Rank(), size), vm.RunAll()); err != nil {
								return err
							}
							all, err := comm.AllGatherObject(t.Context(), pg, floats(n.costValue)[0])
							if err != nil {
								return err
							}
							var mean float64
							for _, cost := range all {
								mean += cost / float64(size)
							}
							if err := near([][]float64{{mean}}, costs[step:step+1], p.tolerance); err != nil {
								return fmt.Errorf("step %d: cost: %w", step, err)
							}
							if err := s.Step(G.NodesToValueGrads(n.learnables)); err != nil {
								return err
							}
							vm.Reset()
						}
						if err := near(n.params(), params, 10*p.tolerance); err != nil {
							return err
						}
						all, err := comm.AllGatherObject(t.Context(), pg, n.params())
						if err != nil {
							return err
						}
						for rank, theirs := range all {
							if !reflect.DeepEqual(theirs, all[0]) {
								return fmt.Errorf("rank %d ends with %v, rank 0 with %v", rank, theirs, all[0])
							}
						}
						return nil
					})
				})
			}
		}
	}
}

// The optimizers of package optim update a graph's learnables in place, also if they move the
// parameters' memory.
func TestOptimizers(t *testing.T) {
	for _, move := range []bool{false, true} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			theirs, _, vm1, err := distributed(pg, tensor.Float64, 4, nil)
			if err != nil {
				return err
			}
			ours, m, vm2, err := distributed(pg, tensor.Float64, 4, nil)
			if err != nil {
				return err
			}
			if move {
				for _, p := range m.Parameters() {
					to := device.HostTensor(make([]float64, p.Shape().Len()), device.Invalid, p.Shape()...)
					if err := p.Var().MoveTo(to); err != nil {
						return err
					}
				}
			}
			solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
			opt := must.New(optim.NewSGD(m.Parameters(), &optim.SGDOptions{LR: 0.1}))
			for step := range 4 {
				err := errors.Join(theirs.let(step, pg.Rank(), 2), vm1.RunAll(), solver.Step(G.NodesToValueGrads(theirs.learnables)))
				vm1.Reset()
				if err := errors.Join(err, ours.let(step, pg.Rank(), 2), vm2.RunAll(), opt.Step()); err != nil {
					return err
				}
				opt.ZeroGrad()
				vm2.Reset()
			}
			if err := near(ours.params(), theirs.params(), 1e-15); err != nil {
				return fmt.Errorf("moved %t: %w", move, err)
			}
			return errors.Join(vm1.Close(), vm2.Close())
		})
	}
}

// Runs within NoSync do not reduce. The next run reduces the sum, and the run after that starts
// with zero gradients, whether or not a solver zeroed them.
func TestNoSync(t *testing.T) {
	const rows = 4
	for _, p := range precisions {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			n, m, vm, err := distributed(pg, p.Dtype, rows, &Options{BucketCapMB: 1e-4})
			if err != nil {
				return err
			}
			defer vm.Close()
			run := func(step int) error {
				defer vm.Reset()
				return errors.Join(n.let(step, pg.Rank(), 2), vm.RunAll())
			}
			alone, err := gradients(p.Dtype, rows, func(n *network) error { return n.let(0, pg.Rank(), 2) })
			if err != nil {
				return err
			}
			for pass := range 3 { // with the first buckets and with the rebuilt ones
				err := m.NoSync(func() error {
					if err := run(0); err != nil {
						return err
					}
					if err := near(n.grads(), alone, p.tolerance); err != nil {
						return fmt.Errorf("pass %d: within NoSync: %w", pass, err)
					}
					return run(1)
				})
				if err := errors.Join(err, run(2)); err != nil {
					return err
				}
				want := make([][]float64, len(n.learnables))
				for rank := range 2 {
					for step := range 3 {
						g, err := gradients(p.Dtype, rows, func(n *network) error { return n.let(step, rank, 2) })
						if err != nil {
							return err
						}
						for i := range g {
							want[i] = append(want[i], make([]float64, len(g[i])-len(want[i]))...)
							for j, v := range g[i] {
								want[i][j] += v / 2
							}
						}
					}
				}
				if err := near(n.grads(), want, 10*p.tolerance); err != nil {
					return fmt.Errorf("pass %d: %w", pass, err)
				}
			}
			return nil
		})
	}
}

// gradients returns the gradients of one process.
func gradients(dt tensor.Dtype, rows int, let func(*network) error) ([][]float64, error) {
	n := &network{}
	err := Build(func() error {
		n = newNetwork(dt, rows, 0)
		n.build(itself)
		_, err := G.Grad(n.cost, n.learnables...)
		return err
	})
	if err != nil {
		return nil, err
	}
	var vm G.VM
	Build(func() error { vm = G.NewTapeMachine(n.g); return nil })
	defer vm.Close()
	if err := errors.Join(let(n), vm.RunAll()); err != nil {
		return nil, err
	}
	return n.grads(), nil
}

// started records how many gradients were final when the reduction of a bucket started.
type started struct {
	pg    *comm.ProcessGroup
	trace *profile.Recorder
	at    []int
}

func (s *started) Reduce(b reducer.GradBucket) reducer.Reduction {
	s.at = append(s.at, len(spans(s.trace, "gradient of ")))
	return s.pg.With(&comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

func spans(r *profile.Recorder, prefix string) (found []profile.Span) {
	for _, s := range r.Spans() {
		if len(s.Name) >= len(prefix) && s.Name[:len(prefix)] == prefix {
			found = append(found, s)
		}
	}
	return found
}

// Buckets are reduced one by one as their gradients become final. Gradients are views of the
// buckets, which follow rank 0's order from the second pass on.
func TestReducesWhileTheTapeRuns(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		trace := profile.Of(pg.Device())
		hook := &started{pg: pg, trace: trace}
		n, m, vm, err := distributed(pg, tensor.Float64, 4, &Options{BucketCapMB: 1e-6, Hook: hook})
		if err != nil {
			return err
		}
		defer vm.Close()
		var before []G.Value
		for step := range 3 {
			if step == 1 {
				if m.reducer.Stats().Rebuilt != nil {
					return errors.New("the buckets were in the right order from the start, which tests less")
				}
				trace.Start()
				hook.at = nil
			}
			if err := errors.Join(n.let(step, pg.Rank(), 2), vm.RunAll()); err != nil {
				return err
			}
			vm.Reset()
			for i, l := range n.learnables {
				g, err := l.Grad()
				if err != nil {
					return err
				}
				if at := m.reducer.Grad(i).Buf.Addr(); g.Uintptr() != at {
					return fmt.Errorf("step %d: the gradient of %s is at %x, its place in the buckets at %x", step, l.Name(), g.Uintptr(), at)
				}
				switch step {
				case 1:
					before = append(before, g)
				case 2:
					if g != before[i] {
						return fmt.Errorf("the gradient of %s is another value in step %d", l.Name(), step)
					}
				}
			}
		}
		if m.reducer.Stats().Rebuilt == nil {
			return errors.New("the buckets do not follow the order of gradients")
		}
		if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; !reflect.DeepEqual(hook.at, want) {
			return fmt.Errorf("reductions started behind %v gradients, want %v", hook.at, want)
		}
		if f, b, w := len(spans(trace, "forward")), len(spans(trace, "backward")), len(spans(trace, "gradient of w1")); f != 2 || b != 2 || w != 2 {
			return fmt.Errorf("the trace of 2 passes holds %d forward and %d backward passes, and %d gradients of w1", f, b, w)
		}
		return nil
	})
}

// On the tape a gradient becomes final before the products for the layers before it are computed.
// The gradient of the input is not computed, and no product twice.
func TestOrderOfTheTape(t *testing.T) {
	commtest.OnRanks(t, 1, nil, func(pg *comm.ProcessGroup) error {
		var log bytes.Buffer
		_, _, vm, err := distributed(pg, tensor.Float64, 4, nil, G.WithLogger(stdlog.New(&log, "", 0)), G.WithWatchlist())
		if err != nil {
			return err
		}
		defer vm.Close()
		n := vm.model.learnables[0].node.Graph().ByName("x")[0]
		y := n.Graph().ByName("y")[0]
		if err := errors.Join(G.Let(n, values(tensor.Float64, 1, 0, 4, width)), G.Let(y, values(tensor.Float64, 2, 0, 4, width)), vm.RunAll()); err != nil {
			return err
		}
		var got []string
		for _, m := range regexp.MustCompile(`Executing (Aᵀ? × Bᵀ?|gradient of \w+)`).FindAllStringSubmatch(log.String(), -1) {
			got = append(got, m[1])
		}
		want := []string{
			"A × B", "A × B", "A × B", "A × B", // the forward pass
			"gradient of s", "A × Bᵀ", "Aᵀ × B", "gradient of w2", // w2's gradient is transposed and has a second term
			"A × Bᵀ", "Aᵀ × B", "A × Bᵀ", "Aᵀ × B", "gradient of w1", // the gradient of w1 has two terms
			"gradient of b1", "gradient of b0", "gradient of w0", // the gradient of w0 is a product
		}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("the tape is\n%q, want\n%q", got, want)
		}
		return nil
	})
}

// A gradient that Gorgonia transposed without a copy is written in row-major order.
func TestTransposedGradient(t *testing.T) {
	d := values(tensor.Float64, 1, 0, 2, 3)
	if err := d.T(); err != nil {
		t.Fatal(err)
	}
	got, err := elements(d)
	if err != nil {
		t.Fatal(err)
	}
	v := func(i int) float64 { return value(1, i) }
	if want := []float64{v(0), v(3), v(1), v(4), v(2), v(5)}; !reflect.DeepEqual(device.Elements[float64](got), want) {
		t.Errorf("got %v, want %v", device.Elements[float64](got), want)
	}
}

// Real processes train like ranks within one process.
func TestOnProcesses(t *testing.T) {
	commtest.Processes(t, 2, "GODDP_DEVICE=cpu")
}
