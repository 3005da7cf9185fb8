package zero

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var errInjected = errors.New("injected")

// survivor is what a rank keeps from one group to the next: a device, whose updates can fail, a
// model and its optimizer.
type survivor struct {
	device.Device
	updates int       // the number of updates before one fails; negative: none fails
	before  func(int) // called before each Step with its number, from 1, unless nil
	left    int       // the step in which this rank stops; 0: none
	net     noted
	opt     *Optimizer[Local] // nil before the first group
}

// noted is a module with a buffer, a frozen parameter, and a parameter with two names.
type noted struct {
	nn.Module
	note   *nn.Buffer
	frozen *nn.Parameter
}

func (n noted) Buffers() []*nn.Buffer { return []*nn.Buffer{n.note} }
func (n noted) Parameters() []*nn.Parameter {
	params := n.Module.Parameters()
	again := nn.Sequential(nn.Sequential(n.Module)).Parameters()[0] // "0.0.0.weight"
	return append(params, n.frozen, again)
}

func (s *survivor) Kernels() device.Kernels { return brittle{kernels.Of(s.Device), s} }

type brittle struct {
	kernels.Kernels
	s *survivor
}

func (b brittle) AdamW(stream device.Stream, steps ...kernels.AdamWStep) error {
	for _, step := range steps {
		if b.s.updates == 0 {
			return errInjected
		}
		b.s.updates--
		if err := b.Kernels.AdamW(stream, step); err != nil {
			return err
		}
	}
	return nil
}

// restart gives the survivor a new model, as in a new process.
func (s *survivor) restart() {
	frozen := nn.NewUnplacedParameter("frozen", nn.Constant(-1), device.Float64, 1)
	frozen.Freeze()
	s.net = noted{mlp(double), nn.NewUnplacedBuffer("note", nn.Constant(-1), device.Float64, 1), frozen}
	s.opt = nil
}

func survivors(t *testing.T, ranks int, isLagging bool) (all []*survivor) {
	for _, d := range devices(t, ranks, isLagging) {
		s := &survivor{Device: d, updates: -1}
		s.restart()
		all = append(all, s)
	}
	return all
}

// onSurvivors makes a group of the survivors and runs f on each rank.
func onSurvivors(t *testing.T, all []*survivor, wrap func(backend.Backend) backend.Backend, f func(pg *comm.ProcessGroup, s *survivor) error) {
	t.Helper()
	t.Setenv(jobenv.DumpOnFailureVar, "0")
	opts := quiet()
	opts.ErrorMode = comm.BlockingWait
	opts = commtest.WrapBackend(opts, wrap)
	var devices []device.Device
	for _, s := range all {
		devices = append(devices, s)
	}
	commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error { return f(pg, all[pg.Rank()]) })
}

// train recovers the state and makes the steps up to, but not including, to.
func (s *survivor) train(pg *comm.ProcessGroup, to int) error {
	model, opt, err := Recover(s.net, pg, s.opt, adamW, small)
	if err != nil {
		return err
	}
	s.opt = opt
	from, whole := opt.Committed()
	if !whole {
		return errors.New("what was recovered is not whole")
	}
	w := wrapped{model, opt, opt, opt.Local()}
	for step := from; step < to; step++ {
		if err := w.loss(pg, device.Float64, step).Backward(nil); err != nil {
			return err
		}
		if s.before != nil {
			s.before(step + 1)
		}
		if s.left == step+1 {
			return errInjected
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	return nil
}

// gathersFail is a backend whose gathers of parameters fail from a given number on.
type gathersFail struct {
	backend.Backend
	left int
}

func (g *gathersFail) Start(c *backend.Call) (backend.Task, error) {
	if c.Kind == backend.AllGather && strings.Contains(c.Name, "of parameters") {
		if g.left--; g.left < 0 {
			return nil, errInjected
		}
	}
	return g.Backend.Start(c)
}

// failAt makes backends that fail at the n-th gather.
func failAt(n int) func() func(backend.Backend) backend.Backend {
	return func() func(backend.Backend) backend.Backend {
		return func(b backend.Backend) backend.Backend { return &gathersFail{b, n} }
	}
}

// After a failure that leaves all shards with the same updates, the ranks go on training and reach
// exactly the same state as without the failure, also with more ranks. After any other failure all
// ranks get an error that says which shards are lost.
func TestRecover(t *testing.T) {
	const ranks, failing, steps = 2, 3, 6
	plain := survivors(t, ranks, false)
	onSurvivors(t, plain, nil, func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, steps) })
	want := allBits(plain[0].net)

	inconsistent := func(s *survivor, pg *comm.ProcessGroup, to int) error {
		var e *optim.InconsistentError
		err := s.train(pg, to)
		if _, whole := s.opt.Committed(); !errors.As(err, &e) || e.Step != to || whole {
			return fmt.Errorf("got %v, whole: %v; want step %d inconsistent", err, whole, to)
		}
		return nil
	}
	for _, c := range []struct {
		name  string
		at    func(pg *comm.ProcessGroup, s *survivor) error // ends the first group
		wrap  func() func(backend.Backend) backend.Backend   // nil: no wrapper
		after func(all []*survivor) []*survivor
		step  int // the recovered step; -1: lost
	}{
		{name: "between two steps", step: failing,
			at: func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, failing) }},
		{name: "a gather fails", step: failing,
			// There are three buckets in a step. In the failing step the second gather fails, on
			// every rank at most.
			wrap: failAt(3*(failing-1) + 1),
			at:   func(pg *comm.ProcessGroup, s *survivor) error { return inconsistent(s, pg, failing) }},
		{name: "a gather fails on one rank", step: failing,
			wrap: func() func(backend.Backend) backend.Backend {
				var first atomic.Bool
				return func(b backend.Backend) backend.Backend {
					if first.CompareAndSwap(false, true) {
						return &gathersFail{b, 3*(failing-1) + 1}
					}
					return b
				}
			},
			at: func(pg *comm.ProcessGroup, s *survivor) error { return inconsistent(s, pg, failing) }},
		{name: "the first gather of all fails", step: 1,
			wrap: failAt(0),
			at:   func(pg *comm.ProcessGroup, s *survivor) error { return inconsistent(s, pg, 1) }},
		{name: "a rank joins", step: failing,
			wrap:  failAt(3 * (failing - 1)),
			at:    func(pg *comm.ProcessGroup, s *survivor) error { return inconsistent(s, pg, failing) },
			after: func(all []*survivor) []*survivor { return append(survivors(t, 1, false), all...) }},
		{name: "between two updates", step: -1,
			at: func(pg *comm.ProcessGroup, s *survivor) error {
				if pg.Rank() == 0 {
					s.updates = 6*(failing-1) + 4
				}
				return inconsistent(s, pg, failing)
			}},
		{name: "a rank is one step behind", step: -1,
			at: func(pg *comm.ProcessGroup, s *survivor) error {
				if pg.Rank() == 1 {
					return inconsistent(s, pg, failing)
				}
				s.left = failing
				if err := s.train(pg, failing); !errors.Is(err, errInjected) {
					return fmt.Errorf("got %v", err)
				}
				pg.Abort(errInjected)
				return nil
			}},
		{name: "a process is replaced", step: -1,
			at: func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, failing) },
			after: func(all []*survivor) []*survivor {
				all[1].restart()
				return all
			}},
	} {
		for _, isLagging := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lagging: %v", c.name, isLagging), func(t *testing.T) {
				all := survivors(t, ranks, isLagging)
				var ready sync.WaitGroup // all ranks have the gradients of the failing step, so that a rank that fails does not stop others from getting them
				ready.Add(ranks)
				failing := failing
				if c.step > 0 {
					failing = c.step
				}
				for _, s := range all {
					s.before = func(step int) {
						if step == failing {
							ready.Done()
							ready.Wait()
						}
					}
				}
				var wrap func(backend.Backend) backend.Backend
				if c.wrap != nil {
					wrap = c.wrap()
				}
				onSurvivors(t, all, wrap, func(pg *comm.ProcessGroup, s *survivor) error {
					err := c.at(pg, s)
					for _, v := range []*autograd.Variable{s.net.note.Var(), s.net.frozen.Var()} {
						device.Elements[float64](v.Tensor())[0] = 7
					}
					return err
				})
				for _, s := range all {
					s.updates, s.before, s.left = -1, nil, 0
				}
				if c.after != nil {
					all = c.after(all)
				}
				onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error {
					_, opt, err := Recover(s.net, pg, s.opt, adamW, small)
					if c.step < 0 {
						var lost *LostShardError
						if !errors.As(err, &lost) || lost.Step != failing || len(lost.Ranks) != len(all) {
							return fmt.Errorf("got %v, want step %d lost", err, failing)
						}
						return nil
					}
					if err != nil {
						return err
					}
					s.opt = opt
					if n, whole := opt.Committed(); n != c.step || !whole {
						return fmt.Errorf("recovered step %d, whole: %v; want %d", n, whole, c.step)
					}
					for _, v := range []*autograd.Variable{s.net.note.Var(), s.net.frozen.Var()} {
						if got := v.Item(); got != 7 {
							return fmt.Errorf("%v is %v, want 7", v, got)
						}
					}
					return nil
				})
				if c.step < 0 || t.Failed() {
					return
				}
				onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error {
					device.Elements[float64](s.net.frozen.Var().Tensor())[0] = -1 // the value without a failure
					if pg.Size() != ranks {                                       // another number of ranks rounds means differently
						return s.train(pg, c.step)
					}
					return s.train(pg, steps)
				})
				for r, s := range all {
					if !bytes.Equal(allBits(s.net), allBits(all[0].net)) {
						t.Errorf("rank %d's parameters differ from rank 0's", r)
					}
					if len(all) == ranks && !bytes.Equal(allBits(s.net), want) {
						t.Errorf("rank %d did not come where it comes without a failure", r)
					}
				}
			})
		}
	}
}

// A recovery that failed can be repeated, because it does not change the old shards.
func TestFailedRecoveryCanBeRepeated(t *testing.T) {
	const failing, steps = 3, 6
	plain := survivors(t, 2, false)
	onSurvivors(t, plain, nil, func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, steps) })
	all := survivors(t, 2, false)
	onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, failing) })
	for _, name := range []string{"parameter 2.weight", "state 2.weight.mean"} {
		onSurvivors(t, all, func(b backend.Backend) backend.Backend { return refusing{b, name} }, func(pg *comm.ProcessGroup, s *survivor) error {
			if _, _, err := Recover(s.net, pg, s.opt, adamW, small); err == nil {
				return errors.New("recovered, although a broadcast was refused")
			}
			pg.Abort(errInjected)
			return nil
		})
	}
	onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, steps) })
	if !bytes.Equal(allBits(all[0].net), allBits(plain[0].net)) {
		t.Error("they did not come where they come without a failure")
	}
}

// refusing is a backend that fails calls with a given name.
type refusing struct {
	backend.Backend
	name string
}

func (r refusing) Start(c *backend.Call) (backend.Task, error) {
	if c.Name == r.name {
		return nil, errInjected
	}
	return r.Backend.Start(c)
}

// lateFailure is a gather whose error the host gets later, as on a GPU.
type lateFailure struct{ backend.Task }

func (l lateFailure) Join(context.Context, device.Stream) error { return nil }
func (l lateFailure) Sync(context.Context) error                { return errInjected }
func (l lateFailure) State() (backend.State, error)             { return backend.Failed, errInjected }

type failsLate struct{ backend.Backend }

func (f failsLate) Start(c *backend.Call) (backend.Task, error) {
	task, err := f.Backend.Start(c)
	if err == nil && c.Kind == backend.AllGather && strings.Contains(c.Name, "of parameters") {
		return lateFailure{task}, nil
	}
	return task, err
}

// If a gather fails after Step has returned, the optimizer is inconsistent and makes no further
// step.
func TestLateGatherFailureIsInconsistent(t *testing.T) {
	o := commtest.WrapBackend(quiet(), func(b backend.Backend) backend.Backend { return failsLate{b} })
	commtest.OnDevices(t, devices(t, 2, true), o, func(pg *comm.ProcessGroup) error {
		w, err := divided(mlp(double), pg, sgd, small)
		if err == nil {
			_, err = w.train(pg, device.Float64, 0, 1)
		}
		if err != nil {
			return err
		}
		if n, whole := w.opt.Committed(); n != 1 || whole {
			return fmt.Errorf("%d steps committed, whole: %v", n, whole)
		}
		if n, whole := w.zero.updates(); n != 1 || !whole {
			return fmt.Errorf("%d updates, whole: %v; those of the shards are", n, whole)
		}
		if err := w.loss(pg, device.Float64, 1).Backward(nil); err != nil {
			return err
		}
		var inconsistent *optim.InconsistentError
		if err := w.opt.Step(); !errors.As(err, &inconsistent) || inconsistent.Step != 1 || !errors.Is(err, errInjected) {
			return fmt.Errorf("the next step: %v", err)
		}
		w.opt.BeginLoad()
		w.opt.EndLoad(1)
		if n, whole := w.opt.Committed(); n != 1 || !whole {
			return fmt.Errorf("restored: %d steps committed, whole: %v", n, whole)
		}
		return nil
	})
}

// Shards of another model or of another kind of optimizer are an error on every rank.
func TestRecoverShardsThatDoNotFit(t *testing.T) {
	all := survivors(t, 2, false)
	onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, 2) })
	onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error {
		_, _, err := Recover(s.net, pg, s.opt, sgd, small)
		if err == nil || !strings.Contains(err.Error(), `state 4.bias.mean`) {
			return fmt.Errorf("with another kind: %v", err)
		}
		other, layer := s.net, func(in, out int) nn.Module { return nn.Linear(in, out, &double) }
		other.Module = nn.Sequential(layer(width, width), nn.ReLU(), layer(width, width), nn.ReLU(), layer(width, width), layer(width, width))
		if _, _, err = Recover(other, pg, s.opt, adamW, small); err == nil || !strings.Contains(err.Error(), `the shards lack ["parameter 5.bias"`) {
			return fmt.Errorf("with another model: %v", err)
		}
		other.Module = nn.Sequential(layer(width, width), nn.ReLU(), layer(width, 2), nn.ReLU(), layer(2, width))
		if _, _, err = Recover(other, pg, s.opt, adamW, small); err == nil || !strings.Contains(err.Error(), "4.weight.mean of shape [9 9], which the module and its optimizer do not have") {
			return fmt.Errorf("with other shapes: %v", err)
		}
		return nil
	})
	onSurvivors(t, all, nil, func(pg *comm.ProcessGroup, s *survivor) error { return s.train(pg, 3) })
}

// Recover does not change parameters and buffers that Ignore names.
func TestRecoverIgnores(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		net, opts := mlp(double), &ddp.Options{BucketCapMB: small.BucketCapMB, Ignore: []string{"0.bias"}}
		if err := nn.Place(net, pg.Device(), uint64(pg.Rank())); err != nil {
			return err
		}
		w := must.New(divided(net, pg, adamW, opts))
		if _, err := w.train(pg, device.Float64, 0, 2); err != nil {
			return err
		}
		before := allBits(net)
		if _, _, err := Recover(net, pg, w.zero, maker(adamW), opts); err != nil {
			return err
		}
		if !bytes.Equal(before, allBits(net)) {
			return errors.New("the parameters are not what they were")
		}
		return nil
	}, 2)
}

func TestRecoverySources(t *testing.T) {
	none := Shard{Consistent: true}
	at := func(rank, of, steps int) Shard { return Shard{rank, of, steps, true} }
	inconsistent := func(s Shard) Shard { s.Consistent = false; return s }
	for _, c := range []struct {
		ranks []Shard
		step  int
		from  []int
		lost  bool
	}{
		{ranks: []Shard{none, none}},
		{ranks: []Shard{at(1, 2, 0), at(0, 2, 0)}},
		{ranks: []Shard{at(1, 2, 4), at(0, 2, 4)}, step: 4, from: []int{1, 0}},
		{ranks: []Shard{none, at(1, 2, 4), at(0, 2, 4)}, step: 4, from: []int{2, 1}},
		{ranks: []Shard{at(0, 1, 3), at(1, 2, 4), at(0, 2, 4)}, step: 4, from: []int{2, 1}},
		{ranks: []Shard{at(0, 2, 4), at(1, 2, 3)}, step: 4, lost: true},
		{ranks: []Shard{at(0, 2, 4), inconsistent(at(1, 2, 4))}, step: 4, lost: true},
		{ranks: []Shard{at(0, 2, 4), at(1, 3, 4), none}, step: 4, lost: true},
		{ranks: []Shard{inconsistent(at(0, 2, 0)), at(1, 2, 0)}, lost: true},
	} {
		step, from, err := sources(c.ranks)
		var lost *LostShardError
		switch {
		case c.lost && (!errors.As(err, &lost) || lost.Step != c.step || !reflect.DeepEqual(lost.Ranks, c.ranks)):
			t.Errorf("%v: %v, want step %d lost", c.ranks, err, c.step)
		case !c.lost && (err != nil || step != c.step || !slices.Equal(from, c.from)):
			t.Errorf("%v: step %d from %v, %v; want %d from %v", c.ranks, step, from, err, c.step, c.from)
		}
	}
	text := (&LostShardError{4, []Shard{at(0, 2, 4), inconsistent(at(1, 2, 3)), none}}).Error()
	if want := "all shards of step 4, the last step that any rank made (rank 0: shard 0 of 2 at step 4; rank 1: shard 1 of 2 at step 3, inconsistent; rank 2: none)"; !strings.Contains(text, want) {
		t.Errorf("%q lacks %q", text, want)
	}
}
