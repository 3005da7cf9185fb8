package zero

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var errInjected = errors.New("injected")

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

// survivor is a rank of a job that survives the loss of ranks.
type survivor struct {
	pg  *comm.ProcessGroup
	net nn.Module
	wrapped
}

// survivors makes ranks and runs f on each. Each has made three steps. With bfloat16 parameters, the optimizer has masters.
func survivors(t *testing.T, ranks int, copies, bf bool, f func(s *survivor) error) {
	t.Helper()
	o := quiet()
	backend.Survive(o)
	groups, err := comm.Local(ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for r, pg := range groups {
		wg.Go(func() {
			defer pg.Close()
			s := &survivor{pg: pg}
			if err := errors.Join(s.begin(t.Context(), copies, bf), f(s)); err != nil {
				t.Errorf("rank %d: %v", r, err)
				pg.Abort(err)
			}
		})
	}
	wg.Wait()
}

func (s *survivor) begin(ctx context.Context, copies, bf bool) error {
	o, options := double, Options{Options: *small, CopyShards: copies}
	if bf {
		o = nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
	}
	frozen := nn.NewUnplacedParameter("frozen", nn.Constant(-1), o.DType, 1)
	frozen.Freeze()
	s.net = noted{mlp(o), nn.NewUnplacedBuffer("note", nn.Constant(-1), o.DType, 1), frozen}
	model, opt, err := New(s.net, s.pg, grouped, &options)
	if err != nil {
		return err
	}
	s.wrapped = wrapped{model, opt, opt, opt.Local()}
	if _, err := s.pg.Reconfigure(ctx, opt.Progress()); err != nil {
		return err
	}
	opt.SetLR(0.02)
	return s.steps(0, 3)
}

// steps makes the steps from from up to, but not including, to, with clipped gradients.
func (s *survivor) steps(from, to int) error {
	for step := from; step < to; step++ {
		if err := s.backward(step); err != nil {
			return err
		}
		if err := s.opt.Step(); err != nil {
			return err
		}
		s.opt.ZeroGrad()
	}
	return nil
}

func (s *survivor) backward(step int) error {
	dt := device.Float64
	if s.net.Parameters()[0].DType() != dt {
		dt = device.Float32
	}
	if err := s.loss(s.pg, dt, step).Backward(nil); err != nil {
		return err
	}
	_, err := s.zero.ClipGradNorm(0.1, nil)
	return err
}

// regroup takes the group to its next members.
func (s *survivor) regroup(ctx context.Context) (hasState bool, err error) {
	m, err := s.pg.Reconfigure(ctx, s.zero.Progress())
	if err != nil {
		return false, err
	}
	hasState, err = s.zero.Regroup(ctx, m)
	if err == nil && hasState {
		err = s.zero.SendCopies(ctx)
	}
	return hasState, err
}

// A copy of a shard has the bits of the shard after each step, and after a change of the ranks.
func TestCopiesEqualTheirShards(t *testing.T) {
	for _, bf := range []bool{false, true} {
		t.Run(fmt.Sprintf("16 bits: %v", bf), func(t *testing.T) {
			const ranks = 3
			var own, copies [2][ranks][]byte // after three steps, and after five; by rank
			var trained sync.WaitGroup
			trained.Add(ranks)
			note := func(s *survivor, at int) (err error) {
				z := s.zero
				of := func(local Local, parts []*part) (all []byte) {
					state, e := keptOf(local, parts)
					for _, k := range state {
						all = append(all, bits(k.Var())...)
					}
					for _, p := range parts {
						all = append(all, bits(p.local.Var())...)
					}
					err = errors.Join(err, e)
					return all
				}
				own[at][s.pg.Rank()], copies[at][z.shards.before()] = of(z.local, z.shards.parts), of(z.copy, z.shards.copied)
				return err
			}
			survivors(t, ranks, true, bf, func(s *survivor) error {
				if err := note(s, 0); err != nil {
					return err
				}
				lost := s.pg.Rank() == 0
				trained.Done()
				trained.Wait()
				if lost {
					backend.Kill(s.pg)
					return nil
				}
				if err := s.steps(3, 4); err == nil {
					return errors.New("a step was made without rank 0")
				}
				s.opt.ZeroGrad()
				if hasState, err := s.regroup(t.Context()); !hasState || err != nil {
					return fmt.Errorf("has the state: %v, %w", hasState, err)
				}
				return errors.Join(s.steps(3, 5), note(s, 1))
			})
			for at := range own {
				for r := range own[at] {
					if !bytes.Equal(own[at][r], copies[at][r]) || at == 0 && len(own[at][r]) == 0 {
						t.Errorf("note %d: the copy of the shard of rank %d differs", at, r)
					}
				}
			}
		})
	}
}

// Some ranks make a step's updates, and one fails to. It makes them later. The ranks go on after that step, and come to
// the bits of an undisturbed job.
func TestRegroupAfterAStepThatSomeRanksMade(t *testing.T) {
	const ranks, behind, lost = 3, 1, 2
	var plain []byte // after four steps
	survivors(t, ranks, false, false, func(s *survivor) error {
		err := s.steps(3, 4)
		if s.pg.Rank() == 0 {
			plain = allBits(s.net)
		}
		return err
	})
	for _, copies := range []bool{false, true} { // with copies, a rank is lost too
		t.Run(fmt.Sprintf("copies: %v", copies), func(t *testing.T) {
			var updated sync.WaitGroup // the ranks that make the updates
			updated.Add(ranks - 1)
			survivors(t, ranks, copies, false, func(s *survivor) error {
				if err := s.backward(3); err != nil {
					return err
				}
				s.zero.OnCommit(updated.Done)
				if s.pg.Rank() == behind {
					s.zero.OnCommit(nil)
					if err := s.zero.prepare(optim.Scaled{}); err != nil {
						return err
					}
					updated.Wait()
					s.pg.Abort(errInjected)
				} else if err := errors.Join(s.opt.Step(), s.loss(s.pg, device.Float64, 4).Err()); err == nil || !strings.Contains(err.Error(), "gathering parameters") {
					return fmt.Errorf("got %v, want a failed gather", err)
				}
				s.zero.OnCommit(nil)
				if copies && s.pg.Rank() == lost {
					backend.Kill(s.pg)
					return nil
				}
				if hasState, err := s.regroup(t.Context()); !hasState || err != nil {
					return fmt.Errorf("has the state: %v, %w", hasState, err)
				}
				if n, whole := s.opt.Committed(); n != 4 || !whole {
					return fmt.Errorf("%d steps, whole: %v; want 4", n, whole)
				}
				if got := allBits(s.net); !bytes.Equal(got, plain) {
					return errors.New("the parameters differ from those of an undisturbed job")
				}
				return s.steps(4, 5)
			})
		})
	}
}

func TestSources(t *testing.T) {
	has := func(of int, shards ...int) holding { return holding{of, shards} }
	for _, c := range []struct {
		ranks []holding
		want  []int
	}{
		{[]holding{has(2, 1), has(2, 0)}, []int{1, 0}},
		{[]holding{has(2), has(2, 1), has(2, 0)}, []int{2, 1}},
		{[]holding{has(1), has(2, 1), has(2, 0)}, []int{2, 1}},
		{[]holding{has(2, 0), has(2)}, nil},
		{[]holding{has(2, 0), has(3, 1), has(3, 2)}, nil},
		{[]holding{has(4, 0, 3), has(4, 1, 0), has(4, 3, 2)}, []int{0, 1, 2, 0}},
		{[]holding{has(4, 0, 3), has(4, 1, 0)}, nil},
	} {
		if got := sources(c.ranks); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.ranks, got, c.want)
		}
	}
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
		if p := w.zero.Progress(); p != (comm.Progress{Steps: 1, Consistent: true}) {
			return fmt.Errorf("the shards are %+v", p)
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
