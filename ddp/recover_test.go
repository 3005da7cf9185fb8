package ddp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// survivor is what a rank keeps from one group to the next: a device, whose updates can fail, a
// model with a buffer, and its optimizer.
type survivor struct {
	device.Device
	updates int  // the number of updates before one fails; negative: none fails
	half    bool // the parameters have 16 bits, and master weights
	net     nn.Module
	note    *nn.Buffer
	opt     *optim.SGD
}

func (s *survivor) Kernels() device.Kernels { return brittle{kernels.Of(s.Device), s} }

type brittle struct {
	kernels.Kernels
	s *survivor
}

func (b brittle) SGD(stream device.Stream, steps ...kernels.SGDStep) error {
	for _, step := range steps {
		if b.s.updates == 0 {
			return errInjected
		}
		b.s.updates--
		if err := b.Kernels.SGD(stream, step); err != nil {
			return err
		}
	}
	return nil
}

// restart gives the survivor a new model, as in a new process.
func (s *survivor) restart() {
	s.note = nn.NewUnplacedBuffer("note", nn.Constant(-1), device.Float64, 1)
	net := mlp(8, device.Float64)
	if s.half {
		o := nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
		net = nn.Sequential(nn.Linear(8, 8, &o), nn.ReLU(), nn.Linear(8, 8, &o), nn.ReLU(), nn.Linear(8, 8, &o))
	}
	s.net = noted{net, s.note}
	s.opt = must.New(optim.NewSGD(s.net.Parameters(), &optim.SGDOptions{LR: 0.05, Momentum: 0.9, MasterWeights: true}))
}

// noted is a module with a buffer.
type noted struct {
	nn.Module
	note *nn.Buffer
}

func (n noted) Buffers() []*nn.Buffer { return []*nn.Buffer{n.note} }

func survivors(t *testing.T, ranks int, isLagging, half bool) []*survivor {
	var out []*survivor
	for range ranks {
		dev := cpu.New(&cpu.Options{Threads: 1})
		t.Cleanup(func() { dev.Close() })
		s := &survivor{Device: dev, updates: -1, half: half}
		if isLagging {
			s.Device = devicetest.Lagging(dev)
		}
		s.restart()
		out = append(out, s)
	}
	return out
}

// onSurvivors makes a group of the survivors and runs f on each rank.
func onSurvivors(t *testing.T, all []*survivor, opts comm.Options, f func(pg *comm.ProcessGroup, s *survivor) error) {
	t.Helper()
	t.Setenv(jobenv.DumpOnFailureVar, "0")
	opts.ErrorMode, opts.Log = comm.BlockingWait, slog.New(slog.DiscardHandler)
	var devices []device.Device
	for _, s := range all {
		devices = append(devices, s)
	}
	commtest.OnDevices(t, devices, &opts, func(pg *comm.ProcessGroup) error { return f(pg, all[pg.Rank()]) })
}

// state returns everything that must be equal on all ranks.
func (s *survivor) state() ([]byte, error) {
	kept, err := s.opt.State()
	out := slices.Concat(parameterBytes(s.net.Parameters()), s.note.Var().Tensor().Buf.Host())
	for _, b := range kept {
		out = append(out, b.Var().Tensor().Buf.Host()...)
	}
	return slices.Clone(out), err
}

func (s *survivor) setNote(v float64) { device.Elements[float64](s.note.Var().Tensor())[0] = v }

// train makes the steps from from up to, but not including, to.
func (s *survivor) train(pg *comm.ProcessGroup, from, to int, update func(step int) error) error {
	model := must.New(New(s.net, pg, &Options{BucketCapMB: 0.0001}))
	if n := len(model.Stats().Buckets); n < 3 {
		return fmt.Errorf("%d buckets, want more", n)
	}
	for step := from; step < to; step++ {
		x := samples(s, uint64(2*step), 2*pg.Size(), 8, pg.Rank(), pg.Size())
		y := samples(s, uint64(2*step+1), 2*pg.Size(), 8, pg.Rank(), pg.Size())
		z := model.Forward(x)
		if err := nn.MSELoss(z, autograd.Cast(y, z.DType()), nil).Backward(nil); err != nil {
			return err
		}
		if err := update(step); err != nil {
			return err
		}
		s.opt.ZeroGrad()
	}
	return nil
}

// After a failure that leaves the ranks at different steps or within one, they go on training and
// reach exactly the same state as without the failure, master weights included.
func TestRecover(t *testing.T) {
	const ranks, steps, failing = 3, 8, 4
	parameters := map[bool][]byte{} // without a failure, by whether they have 16 bits
	for _, half := range []bool{false, true} {
		plain := survivors(t, ranks, false, half)
		onSurvivors(t, plain, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
			return s.train(pg, 0, steps, func(int) error { return s.opt.Step() })
		})
		parameters[half] = parameterBytes(plain[0].net.Parameters())
	}
	for _, c := range []struct {
		name  string
		at    func(rank int, s *survivor) error // replaces the step of that rank that fails
		after func(rank int, s *survivor)
		from  int
	}{
		{"inconsistent between two updates", func(rank int, s *survivor) error {
			if rank == 0 {
				s.updates = 2
			}
			return s.opt.Step()
		}, nil, 1},
		{"one step apart", func(rank int, s *survivor) error {
			if rank == 1 {
				return errInjected
			}
			return s.opt.Step()
		}, nil, 0},
		{"two inconsistent, and one without a memory", func(rank int, s *survivor) error {
			if rank != 2 {
				s.updates = rank + 1
			}
			return s.opt.Step()
		}, func(rank int, s *survivor) {
			if rank == 0 {
				s.restart()
			}
		}, 2},
	} {
		for _, how := range []struct{ isLagging, half bool }{{false, false}, {true, false}, {false, true}} {
			t.Run(fmt.Sprintf("%s, %+v", c.name, how), func(t *testing.T) {
				all, want := survivors(t, ranks, how.isLagging, how.half), parameters[how.half]
				var ready sync.WaitGroup // all ranks have the gradients of the failing step, so that a rank that fails does not stop others from getting them
				ready.Add(ranks)
				onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
					err := s.train(pg, 0, steps, func(step int) error {
						if step == failing {
							ready.Done()
							ready.Wait()
							return c.at(pg.Rank(), s)
						}
						return s.opt.Step()
					})
					if err == nil {
						return errors.New("nothing failed")
					}
					pg.Abort(err)
					s.updates = -1
					s.setNote(float64(100 + pg.Rank()))
					if c.after != nil {
						c.after(pg.Rank(), s)
					}
					return nil
				})
				onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
					step, err := Recover(s.net, pg, s.opt)
					if err != nil || step != failing+1 {
						return fmt.Errorf("recovered step %d, %v; want %d", step, err, failing+1)
					}
					if n, whole := s.opt.Committed(); n != step || !whole {
						return fmt.Errorf("%d steps committed, whole: %v", n, whole)
					}
					if got := s.note.Var().Item(); got != float64(100+c.from) {
						return fmt.Errorf("the buffer is %v, want rank %d's", got, c.from)
					}
					for _, p := range s.net.Parameters() {
						if p.Grad() != nil || p.Var().GradErr() != nil {
							return fmt.Errorf("%v is left for %s, with %v", p.Grad(), p.Name(), p.Var().GradErr())
						}
					}
					return s.train(pg, step, steps, func(int) error { return s.opt.Step() })
				})
				first, err := all[0].state()
				for r, s := range all {
					if state, e := s.state(); err != nil || e != nil || !bytes.Equal(state, first) {
						t.Errorf("rank %d's state differs from rank 0's (%v, %v)", r, err, e)
					}
					if !bytes.Equal(parameterBytes(s.net.Parameters()), want) {
						t.Errorf("rank %d did not come where it comes without a failure", r)
					}
				}
			})
		}
	}
}

// If no rank is consistent, all ranks get a LostStateError, the group remains usable, and a
// checkpoint can be restored.
func TestRecoverWithoutConsistentRank(t *testing.T) {
	all := survivors(t, 2, false, false)
	saved := make([][]byte, 2)
	onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
		err := s.train(pg, 0, 3, func(step int) (err error) {
			if step == 2 {
				s.updates = 1
				saved[pg.Rank()] = slices.Clone(parameterBytes(s.net.Parameters()))
			}
			return s.opt.Step()
		})
		var inconsistent *optim.InconsistentError
		if !errors.As(err, &inconsistent) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
		_, err := Recover(s.net, pg, s.opt)
		var lost *LostStateError
		if !errors.As(err, &lost) || lost.Step != 2 || !slices.Equal(lost.Ranks, []Progress{{2, false}, {2, false}}) {
			return fmt.Errorf("got %v", err)
		}
		if want := "step 2, the last that was committed (rank 0: 2, inconsistent; rank 1: 2, inconsistent): restore a checkpoint"; !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%q lacks %q", err, want)
		}
		s.opt.BeginLoad()
		rest := saved[pg.Rank()]
		for _, p := range s.net.Parameters() {
			rest = rest[copy(p.Var().Tensor().Buf.Host(), rest):]
		}
		s.opt.EndLoad(2)
		if step, err := Recover(s.net, pg, s.opt); err != nil || step != 2 {
			return fmt.Errorf("with a checkpoint: %d, %v", step, err)
		}
		return nil
	})
}

func TestRecoverySource(t *testing.T) {
	for _, c := range []struct {
		ranks      []Progress
		step, from int // -1: lost
	}{
		{[]Progress{{0, true}, {0, true}}, 0, 0},
		{[]Progress{{3, true}, {4, true}, {4, true}}, 4, 1},
		{[]Progress{{4, false}, {3, true}, {4, true}}, 4, 2},
		{[]Progress{{4, false}, {4, false}}, 4, -1},
		{[]Progress{{0, true}, {4, false}}, 4, -1}, // a rank that has just started is no source
		{[]Progress{{5, false}, {4, true}}, 5, -1},
	} {
		step, from, err := source(c.ranks)
		var lost *LostStateError
		switch {
		case c.from < 0 && (!errors.As(err, &lost) || lost.Step != c.step):
			t.Errorf("%v: %v, want step %d lost", c.ranks, err, c.step)
		case c.from >= 0 && (err != nil || step != c.step || from != c.from):
			t.Errorf("%v: step %d of rank %d, %v", c.ranks, step, from, err)
		}
	}
}

// refusing is a backend that fails the broadcast of a recovery on the ranks that receive it.
type refusing struct{ backend.Backend }

func (r refusing) Start(c *backend.Call) (backend.Task, error) {
	if c.Name == "recovered state" && c.Calls[0].Src.IsZero() {
		return nil, errInjected
	}
	return r.Backend.Start(c)
}

// If a recovery fails, no rank takes an incomplete state for a consistent one.
func TestFailedRecoveryIsNotConsistent(t *testing.T) {
	all := survivors(t, 2, false, false)
	all[1].opt.EndLoad(7)
	onSurvivors(t, all, *commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return refusing{b} }),
		func(pg *comm.ProcessGroup, s *survivor) error {
			if _, err := Recover(s.net, pg, s.opt); pg.Rank() == 0 && !errors.Is(err, errInjected) {
				return fmt.Errorf("got %v", err)
			}
			if n, whole := s.opt.Committed(); whole != (pg.Rank() == 1) {
				return fmt.Errorf("%d steps committed, whole: %v", n, whole)
			}
			return nil
		})
	onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
		if step, err := Recover(s.net, pg, s.opt); err != nil || step != 7 {
			return fmt.Errorf("the next one: %d, %v", step, err)
		}
		return nil
	})
}

// If the models cannot be made equal, every rank gets an error, and nothing is overwritten.
func TestRecoverOfModelsThatDiffer(t *testing.T) {
	for want, change := range map[string]func(*survivor){
		`parameter 0 is "0.weight" float64[4 4] on rank 1`: func(s *survivor) {
			s.net = noted{mlp(4, device.Float64), s.note}
			s.opt = must.New(optim.NewSGD(s.net.Parameters(), &optim.SGDOptions{Momentum: 0.9}))
		},
		"0 buffers on rank 1, 1 on rank 0":          func(s *survivor) { s.net = s.net.(noted).Module },
		"0 optimizer states on rank 1, 6 on rank 0": func(s *survivor) { s.opt = must.New(optim.NewSGD(s.net.Parameters(), nil)) },
	} {
		all := survivors(t, 2, false, false)
		change(all[1])
		onSurvivors(t, all, comm.Options{}, func(pg *comm.ProcessGroup, s *survivor) error {
			_, err := Recover(s.net, pg, s.opt)
			var m *reducer.ModelMismatchError
			if _, whole := s.opt.Committed(); !errors.As(err, &m) || !strings.Contains(err.Error(), want) || !whole {
				return fmt.Errorf("got %v, want %s; whole: %v", err, want, whole)
			}
			return nil
		})
	}
}

// A module can be wrapped again for a new group. The gradients then belong to the new model, and a
// backward pass through the old one panics.
func TestModuleCanBeWrappedAgain(t *testing.T) {
	dev := []device.Device{cpu.New(nil), cpu.New(nil)}
	params, old := make([]*nn.Parameter, 2), make([]*Model, 2)
	pass := func(m *Model, pg *comm.ProcessGroup) error {
		return m.Forward(autograd.Scalar(pg.Device(), float32(1+pg.Rank()))).Backward(nil)
	}
	for generation := range 3 {
		opts := &comm.Options{Timeout: time.Minute, ErrorMode: comm.BlockingWait}
		commtest.OnDevices(t, dev, opts, func(pg *comm.ProcessGroup) error {
			r := pg.Rank()
			if generation == 0 {
				params[r] = nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
			}
			model := must.New(New(times{params[r]}, pg, nil))
			if generation > 0 {
				if err := mustBeReplaced(func() { pass(old[r], pg) }); err != nil {
					return err
				}
			}
			old[r] = model
			for range 2 {
				if err := pass(model, pg); err != nil {
					return err
				}
				if got := params[r].Grad().Item(); got != 1.5 {
					return fmt.Errorf("generation %d: the gradient is %v, want 1.5", generation, got)
				}
				params[r].Var().ZeroGrad()
			}
			if generation < 2 {
				return pass(model, pg) // leaves a gradient
			}
			if _, err := Recover(model.Unwrap(), pg, must.New(optim.NewSGD(model.Parameters(), nil))); err != nil {
				return err
			}
			return mustBeReplaced(func() { pass(model, pg) })
		})
	}
}

func mustBeReplaced(f func()) (err error) {
	defer func() {
		if e, ok := recover().(*ReplacedError); !ok || e.Param != "w" {
			err = fmt.Errorf("a model that was replaced panics with %v", e)
		}
	}()
	f()
	return nil
}
