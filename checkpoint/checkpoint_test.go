package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// run is a small training run on one rank.
type run struct {
	pg    *comm.ProcessGroup
	net   nn.Module
	model nn.Module // net on all ranks
	opt   *optim.EMA
	seen  int // a value of the program
}

// These are kinds of optimizers.
const (
	plain = "plain"
	zeros = "zero"
	third = "zero, stage 3"
)

// newRun makes a model whose first value is zero everywhere, so two runs can be equal only through
// a checkpoint.
func newRun(pg *comm.ProcessGroup, kind string, seed uint64) (*run, error) {
	r := &run{pg: pg, net: nn.Sequential(nn.Linear(7, 13, nil), nn.GELU(), nn.Linear(13, 3, nil))}
	if err := nn.Place(r.net, pg.Device(), seed); err != nil {
		return nil, err
	}
	newAdamW := func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01, WeightDecay: 0.01})
	}
	var opt optim.Optimizer
	if kind == plain {
		model, err := ddp.New(r.net, pg, nil)
		if err != nil {
			return nil, err
		}
		r.model, opt = model, must.New(newAdamW(model.Parameters()))
	} else {
		o := &zero.Options{}
		if kind == third {
			o.Stage, o.BucketCapMB = 3, 0.0002
		}
		model, shards, err := zero.New(r.net, pg, newAdamW, o)
		if err != nil {
			return nil, err
		}
		r.model, opt = model, shards
	}
	r.opt = must.New(optim.NewEMA(r.model, opt, nil))
	return r, nil
}

// step makes step n.
func (r *run) step(n int) (loss float64, err error) {
	const global = 12
	each := global / r.pg.Size()
	var x, y []float32
	for i := r.pg.Rank() * each; i < (r.pg.Rank()+1)*each; i++ {
		for k := range 7 {
			x = append(x, float32((i*31+k*17+n*7)%23)/23)
		}
		for k := range 3 {
			y = append(y, float32((i*5+k*3+n)%11)/11)
		}
	}
	dev := r.pg.Device()
	out := nn.MSELoss(r.model.Forward(autograd.FromSlice(dev, x, each, 7)), autograd.FromSlice(dev, y, each, 3), nil)
	if err := out.Backward(nil); err != nil {
		return 0, err
	}
	if err := r.opt.Step(); err != nil {
		return 0, err
	}
	r.opt.ZeroGrad()
	r.seen = n + 1
	return out.Item(), r.opt.Update()
}

// begin makes a run, and opens the folder of its checkpoints.
func begin(pg *comm.ProcessGroup, dir, kind string, seed uint64, o Options) (*run, *Manager, error) {
	r, err := newRun(pg, kind, seed)
	if err != nil {
		return nil, nil, err
	}
	m, err := Open(context.Background(), pg, dir, &o)
	return r, m, err
}

// state returns the state that the run's checkpoints hold.
func (r *run) state() State {
	return State{Model: r.model, Optimizers: []optim.Optimizer{r.opt}, Values: map[string]any{"seen": &r.seen}}
}

// train makes the steps from to to and returns this rank's losses.
func (r *run) train(from, to int) ([]float64, error) {
	var losses []float64
	for n := from; n < to; n++ {
		loss, err := r.step(n)
		if err != nil {
			return nil, err
		}
		losses = append(losses, loss)
	}
	return losses, nil
}

// saved makes some steps and saves the state after the last one to dir.
func saved(ctx context.Context, pg *comm.ProcessGroup, dir, kind string, steps int) (*run, error) {
	r, m, err := begin(pg, dir, kind, 1, Options{})
	if err != nil {
		return nil, err
	}
	if _, err := r.train(0, steps); err != nil {
		return nil, err
	}
	return r, errors.Join(m.Save(ctx, steps, r.state()), m.Close())
}

// resumed makes a run with different weights and resumes it from dir.
func resumed(ctx context.Context, pg *comm.ProcessGroup, dir, kind string, want int) (*run, error) {
	r, m, err := begin(pg, dir, kind, 2, Options{})
	if err != nil {
		return nil, err
	}
	step, err := m.Resume(ctx, r.state())
	if err == nil && (step != want || r.seen != want) {
		err = fmt.Errorf("resumed at step %d, the program's value is %d, want %d", step, r.seen, want)
	}
	return r, errors.Join(err, m.Close())
}

// bits returns the bytes of a run's weights.
func bits(r *run) map[string][]byte {
	all := map[string][]byte{}
	for name, v := range nn.State(r.net) {
		all[name] = bytes.Clone(v.Tensor().Buf.Host())
	}
	return all
}

// savedBits saves a checkpoint of two ranks with divided optimizer state after step 3, and returns the bits of the model.
func savedBits(t *testing.T, dir string) (want map[string][]byte) {
	t.Helper()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, err := saved(t.Context(), pg, dir, zeros, 3)
		if err == nil && pg.Rank() == 0 {
			want = bits(r)
		}
		return err
	})
	return want
}

// A resumed run continues as the run that was not interrupted, also at another number of ranks, and
// with or without shards. At the same number of ranks it has the same bits.
func TestResumedRunContinuesAsAnUninterruptedOne(t *testing.T) {
	const before, after = 5, 4
	for _, ranks := range []int{1, 2, 3} {
		for _, kind := range []string{plain, zeros, third} {
			dir := t.TempDir()
			want := make([][]float64, ranks)
			commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
				r, err := saved(t.Context(), pg, dir, kind, before)
				if err == nil {
					want[pg.Rank()], err = r.train(before, before+after)
				}
				return err
			})
			for _, ranksNow := range []int{1, 2, 4} {
				for _, kindNow := range []string{plain, zeros, third} {
					commtest.OnGoroutines(t, ranksNow, nil, func(pg *comm.ProcessGroup) error {
						r, err := resumed(t.Context(), pg, dir, kindNow, before)
						if err != nil {
							return err
						}
						got, err := r.train(before, before+after)
						if err != nil {
							return err
						}
						for i := range got {
							if ranks == ranksNow && got[i] != want[pg.Rank()][i] {
								return fmt.Errorf("%s on %d ranks, then %s: the loss of step %d is %v, want %v", kind, ranks, kindNow, before+i, got[i], want[pg.Rank()][i])
							}
						}
						mean, err := comm.AllGatherObject(t.Context(), pg, got)
						if err != nil {
							return err
						}
						for i := range got {
							if a, b := average(mean, i), average(want, i); a-b > 1e-6 || b-a > 1e-6 {
								return fmt.Errorf("%s on %d ranks, then %s on %d: the loss of step %d is %v, want %v", kind, ranks, kindNow, ranksNow, before+i, a, b)
							}
						}
						return nil
					})
				}
			}
		}
	}
}

// average returns the mean of all ranks' i-th losses.
func average(losses [][]float64, i int) float64 {
	sum := 0.0
	for _, l := range losses {
		sum += l[i]
	}
	return sum / float64(len(losses))
}

// The last Keep checkpoints and the last of those that were the best remain, and the file latest names the last one.
func TestKeepLast(t *testing.T) {
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, m, err := begin(pg, dir, plain, 1, Options{Keep: 2, Async: true})
		if err != nil {
			return err
		}
		for n := range 5 {
			if _, err := r.train(n, n+1); err != nil {
				return err
			}
			state := r.state()
			state.Best = n < 2
			if err := m.Save(t.Context(), n+1, state); err != nil {
				return err
			}
		}
		err = m.Close()
		if got, want := m.Stats().Path, filepath.Join(dir, "step-00000005"); err == nil && got != want {
			err = fmt.Errorf("the last checkpoint is %s, want %s", got, want)
		}
		return err
	})
	all, err := List(dir)
	if err != nil || len(all) != 3 || all[0].Step != 5 || all[1].Step != 4 || all[2].Step != 2 || !all[0].Latest || !all[2].Best {
		t.Errorf("%+v, %v, want steps 5, the latest, 4, and 2, the best", all, err)
	}
	if best, err := Best(dir); err != nil || best != all[2].Path {
		t.Errorf("the best checkpoint is %s, %v, want %s", best, err, all[2].Path)
	}
	for _, info := range all {
		if err := Verify(info.Path); err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 4 {
		t.Errorf("%v, %v, want three checkpoints and latest", left, err)
	}
}

// Load sets the state to that of a given step, also of an earlier one. A step that was not saved is an error.
func TestLoadOfAStep(t *testing.T) {
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, m, err := begin(pg, dir, zeros, 1, Options{})
		if err != nil {
			return err
		}
		var want map[string][]byte
		for n := range 3 {
			if _, err := r.train(n, n+1); err != nil {
				return err
			}
			if err := m.Save(t.Context(), n+1, r.state()); err != nil {
				return err
			}
			if n == 1 {
				want = bits(r)
			}
		}
		if err := m.Load(t.Context(), 2, r.state()); err != nil || r.seen != 2 || !maps.EqualFunc(bits(r), want, bytes.Equal) {
			return fmt.Errorf("after Load of step 2 the program's value is %d, error %v, want 2 and the weights of that step", r.seen, err)
		}
		if err := m.Load(t.Context(), 4, r.state()); err == nil || !strings.Contains(err.Error(), "there is no such checkpoint") {
			return fmt.Errorf("Load of step 4, which was not saved: %v", err)
		}
		return m.Close()
	})
}

// A failure within an update leaves the optimizer inconsistent. Resume makes
// the state consistent, and the run goes on as if there had been no failure.
func TestResumeAfterABrokenUpdate(t *testing.T) {
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, err := saved(t.Context(), pg, dir, plain, 4)
		if err != nil {
			return err
		}
		want, err := r.train(4, 8)
		if err != nil {
			return err
		}
		r.opt.BeginLoad()
		clear(r.net.Parameters()[0].Var().Tensor().Buf.Host())
		if step, err := resumedAt(t.Context(), pg, dir, r.state()); err != nil || step != 4 {
			return fmt.Errorf("resumed at step %d: %w", step, err)
		}
		if step, consistent := r.opt.Committed(); step != 4 || !consistent {
			t.Errorf("step %d is committed, consistent: %v", step, consistent)
		}
		if got, err := r.train(4, 8); err != nil || !slices.Equal(got, want) {
			t.Errorf("losses %v, %v, want %v", got, err, want)
		}
		return nil
	})
}
