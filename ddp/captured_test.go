//go:build cgo && linux

package ddp_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// optimizer is an optimizer of a replica, with shards or without.
type optimizer interface {
	optim.Optimizer
	optim.ScaledStepper
	SetLR(lr float64)
}

// replica is one rank's model with several buckets, and its optimizer.
type replica struct {
	pg     *comm.ProcessGroup
	model  *ddp.Model
	opt    optimizer
	clip   func() error
	whole  func(f func() error) error // calls f when all parameters are whole
	scaler *amp.Scaler                // nil: the loss is not scaled
	runs   int                        // the number of times that step ran
	skip   bool                       // the next step leaves out the last layer
}

// training says how a replica is trained.
type training struct {
	scaled    bool
	checks    bool         // Options.CheckNonFinite
	normed    bool         // the model has a batch normalisation, whose buffers rank 0 sends
	stage     int          // of package ddp/zero; 0: without shards
	frozen    bool         // the first two weights are frozen
	unclipped bool         // gradients are not clipped
	single    bool         // each step has the gradients of one batch
	dt        device.DType // of the parameters; 0: Float32
	hook      func() reducer.Hook
}

func newReplica(pg *comm.ProcessGroup, how training) (*replica, error) {
	layers := []nn.Module{nn.Linear(8, 16, nil), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16, nil), nn.ReLU(), nn.Linear(16, 4, nil)}
	if how.normed {
		layers = slices.Insert(layers, 2, nn.Module(nn.BatchNorm1d(16, nil)))
	}
	net := nn.Sequential(layers...)
	if how.frozen {
		for _, i := range []int{0, 2} {
			net.Parameters()[i].Freeze()
		}
	}
	if how.dt != 0 {
		if err := errors.Join(nn.Place(net, pg.Device(), 0), nn.Cast(net, how.dt, nil)); err != nil {
			return nil, err
		}
	}
	o := &ddp.Options{BucketCapMB: 0.0001, CheckNonFinite: how.checks}
	if how.hook != nil {
		o.Hook = how.hook()
	}
	adamW := func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01, MasterWeights: how.dt != 0})
	}
	r := &replica{pg: pg, clip: func() error { return nil }, whole: func(f func() error) error { return f() }}
	var bounded func(max float64) (*autograd.Variable, error)
	if how.stage > 0 {
		model, opt, err := zero.New(net, pg, adamW, &zero.Options{Options: *o, Stage: how.stage})
		if err != nil {
			return nil, err
		}
		r.model, r.opt, r.whole = model.Model, opt, model.Whole
		bounded = func(max float64) (*autograd.Variable, error) { return opt.ClipGradNorm(max, nil) }
	} else {
		model, err := ddp.New(net, pg, o)
		if err != nil {
			return nil, err
		}
		r.model, r.opt = model, must.New(adamW(model.Parameters()))
		bounded = func(max float64) (*autograd.Variable, error) { return optim.ClipGradNorm(model.Parameters(), max, nil) }
	}
	if n := len(r.model.Stats().Buckets); n < 3 && !how.frozen {
		return nil, fmt.Errorf("%d buckets, want several", n)
	}
	if how.scaled {
		r.scaler = must.New(amp.NewScaler(&amp.Options{InitScale: 1 << 10, GrowthInterval: 7}))
	}
	if how.dt != device.Float16 && !how.unclipped {
		r.clip = func() error {
			if r.scaler != nil {
				if err := r.scaler.Unscale(r.opt); err != nil {
					return err
				}
			}
			_, err := bounded(1)
			return err
		}
	}
	return r, nil
}

func (r *replica) backward(in ...*autograd.Variable) (*autograd.Variable, error) {
	r.runs++
	y := r.model.Forward(in[0])
	if r.skip {
		y = r.model.Output(r.model.Parameters()[0].Var())
		y = autograd.Sum(autograd.Mul(y, y))
		return y, y.Backward(nil)
	}
	loss := nn.MSELoss(y, in[1], nil)
	if r.scaler != nil {
		return loss, r.scaler.Scale(loss).Backward(nil)
	}
	return loss, loss.Backward(nil)
}

func (r *replica) step(in ...*autograd.Variable) (*autograd.Variable, error) {
	loss, err := r.backward(in...)
	if err == nil {
		err = r.clip()
	}
	if err != nil {
		return nil, err
	}
	if r.scaler != nil {
		err = r.scaler.Step(r.opt)
		r.scaler.Update()
	} else {
		err = r.opt.Step()
	}
	r.opt.ZeroGrad()
	return loss, err
}

// batch returns this rank's n-th batch.
func (r *replica) batch(n int) (x, y *autograd.Variable) {
	values := func(columns int) *autograd.Variable {
		data := make([]float32, 4*columns)
		for i := range data {
			data[i] = float32((7*i+3*n+5*r.pg.Rank())%11)/11 - 0.5
		}
		if r.scaler != nil && n%10 == 9 && r.pg.Rank() == r.pg.Size()-1 && columns == 8 {
			data[0] = float32(math.Inf(1)) // the step of all ranks is skipped
		}
		return autograd.Cast(autograd.FromSlice(r.pg.Device(), data, 4, columns), r.model.Parameters()[0].DType())
	}
	return values(8), values(4)
}

// state returns the parameters and the buffers.
func (r *replica) state(t *testing.T) (all []byte) {
	err := r.whole(func() error {
		for _, p := range r.model.Parameters() {
			all = append(all, must.New(p.Var().Bytes(t.Context()))...)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, b := range r.model.Buffers() {
		all = append(all, must.New(b.Var().Bytes(t.Context()))...)
	}
	return all
}

type stepFunc = func(in ...*autograd.Variable) (*autograd.Variable, error)

// capture captures a step function that must be captured.
func (r *replica) capture(step stepFunc) stepFunc {
	return autograd.Capture(r.pg.Device(), step, &autograd.CaptureOptions{Required: true})
}

// make calls a step function with the batches from from up to, but not including, to.
func (r *replica) make(step stepFunc, from, to int) error {
	for n := from; n < to; n++ {
		if _, err := step(r.batch(n)); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
	}
	return nil
}

// onReplicas runs f with a replica on each of the devices.
func onReplicas(t *testing.T, devices []device.Device, opts *comm.Options, how training, f func(r *replica) error) {
	t.Helper()
	commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
		autograd.Generator(pg.Device()).Seed(3)
		r, err := newReplica(pg, how)
		if err != nil {
			return err
		}
		return f(r)
	})
}

// trained is what a rank ends with.
type trained struct {
	losses    []float64
	committed []int     // the number of committed steps after each step
	scales    []float64 // the scale of the loss after each step
	state     []byte
}

func (a trained) equal(b trained) bool {
	sameBits := func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) }
	return slices.EqualFunc(a.losses, b.losses, sameBits) && slices.Equal(a.committed, b.committed) && slices.Equal(a.scales, b.scales) && bytes.Equal(a.state, b.state)
}

// trainSteps makes steps, on ranks below captured with captured steps. It returns what each rank ends with.
func trainSteps(t *testing.T, devices []device.Device, how training, steps, captured int) []trained {
	t.Helper()
	all := make([]trained, len(devices))
	onReplicas(t, devices, nil, how, func(r *replica) error {
		mine := &all[r.pg.Rank()]
		step, accumulate := r.step, r.backward
		if r.pg.Rank() < captured {
			step, accumulate = r.capture(step), r.capture(accumulate)
		}
		for n := range steps {
			r.opt.SetLR(0.01 / float64(n+1))
			more := n % 3
			if how.single {
				more = 0
			}
			for i := range more { // gradients of more batches are accumulated first
				if err := r.model.NoSync(func() error { return r.make(accumulate, n+100*i, n+100*i+1) }); err != nil {
					return err
				}
			}
			loss, err := step(r.batch(n))
			if err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
			committed, _ := r.opt.Committed()
			mine.losses, mine.committed = append(mine.losses, loss.Item()), append(mine.committed, committed)
			if r.scaler != nil {
				mine.scales = append(mine.scales, r.scaler.GetScale())
			}
		}
		if r.pg.Rank() < captured && r.runs > 16 { // there are two variants of each, with and without a gradient
			return fmt.Errorf("rank %d ran its step function %d times", r.pg.Rank(), r.runs)
		}
		mine.state = r.state(t)
		return nil
	})
	return all
}

// Captured steps of a model give the losses and parameters of steps that are not captured, bit for bit, with a
// schedule, clipping, dropout, a normalisation, accumulated gradients, a scaled loss, hooks and shards, through NCCL
// and through the kernel for small all-reduces, and if only one rank captures.
func TestEmulatedCapturedStepsOfAModel(t *testing.T) {
	const ranks, steps = 2, 24
	for _, c := range []struct {
		name     string
		how      training
		captured int // the number of ranks that capture
		faults   []string
	}{
		{"one rank", training{normed: true}, 1, nil},
		{"small all-reduces", training{normed: true}, 2, []string{"ipc 0", "ipc 1"}},
		{"scaled", training{scaled: true}, 2, nil},
		{"scaled, Float16", training{scaled: true, dt: device.Float16}, 2, nil},
		{"hook FP16, scaled", training{scaled: true, hook: func() reducer.Hook { return commhook.FP16(nil) }}, 1, nil},
		{"hook Int8", training{hook: func() reducer.Hook { return commhook.Int8() }}, 2, nil},
		{"sharded", training{stage: 1}, 1, nil},
		{"sharded, scaled", training{stage: 1, scaled: true}, 2, nil},
		{"stage 2", training{stage: 2}, 2, nil},
		{"stage 3 on one rank", training{stage: 3}, 1, nil},
		{"stage 3, scaled", training{stage: 3, scaled: true}, 2, nil},
		{"stage 3, frozen parameters", training{stage: 3, frozen: true}, 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			devices := commtest.FakeGPUs(t, ranks, c.faults...)
			want := trainSteps(t, devices, c.how, steps, 0)
			wantTrained(t, trainSteps(t, devices, c.how, steps, c.captured), want)
			if made := slices.Max(want[0].committed); c.how.scaled != (made < steps) {
				t.Errorf("%d of %d steps were committed", made, steps)
			}
		})
	}
}

// wantTrained fails the test unless each rank ends with what is wanted, bit for bit.
func wantTrained(t *testing.T, got, want []trained) {
	t.Helper()
	for r := range want {
		if !got[r].equal(want[r]) {
			t.Errorf("rank %d has the losses %v, want %v; scales %v, want %v; committed %v, want %v; equal parameters: %v", r, got[r].losses, want[r].losses,
				got[r].scales, want[r].scales, got[r].committed, want[r].committed, bytes.Equal(got[r].state, want[r].state))
		}
	}
}

// On GPUs captured steps, with NCCL in the graph, equal those that are not captured too.
func TestGPUCapturedStepsOfAModel(t *testing.T) {
	devices := commtest.OpenGPUs(t, 1, 4)
	for _, how := range []training{
		{}, {scaled: true}, {scaled: true, dt: device.Float16}, {hook: func() reducer.Hook { return commhook.BF16(nil) }},
		{stage: 1}, {stage: 1, scaled: true}, {stage: 3}, {stage: 3, scaled: true},
	} {
		t.Run(fmt.Sprintf("%+v", how), func(t *testing.T) {
			want := trainSteps(t, devices, how, 100, 0)
			wantTrained(t, trainSteps(t, devices, how, 100, len(devices)), want)
			for r, mine := range want {
				if !bytes.Equal(mine.state, want[0].state) {
					t.Errorf("the parameters of ranks 0 and %d differ", r)
				}
			}
		})
	}
}

// stagesTrainAlike checks that captured steps of stages 2 and 3 give the losses and parameters of uncaptured ones of
// stage 1, bit for bit.
func stagesTrainAlike(t *testing.T, devices []device.Device, types ...device.DType) {
	for _, dt := range types {
		how := training{stage: 1, single: true, dt: dt}
		want := trainSteps(t, devices, how, 30, 0)
		for _, how.stage = range []int{2, 3} {
			t.Run(fmt.Sprintf("%+v", how), func(t *testing.T) {
				wantTrained(t, trainSteps(t, devices, how, 30, len(devices)), want)
			})
		}
	}
}

func TestEmulatedStagesTrainAlike(t *testing.T) {
	stagesTrainAlike(t, commtest.FakeGPUs(t, 2), 0)
}

func TestGPUStagesTrainAlike(t *testing.T) {
	stagesTrainAlike(t, commtest.OpenGPUs(t, 1, 4), 0, device.BFloat16)
}

// A captured step of a model that another one has replaced panics, as the uncaptured step does.
func TestEmulatedReplayOfAReplacedModelPanics(t *testing.T) {
	onReplicas(t, commtest.FakeGPUs(t, 1), nil, training{}, func(r *replica) (err error) {
		step := r.capture(r.step)
		err = r.make(step, 0, 6)
		runs := r.runs
		if err = errors.Join(err, r.make(step, 6, 7)); err != nil || r.runs != runs {
			return fmt.Errorf("step 6 ran uncaptured, or failed: %w", err)
		}
		must.New(ddp.New(r.model.Unwrap(), r.pg, nil))
		defer func() {
			if e, ok := recover().(*ddp.ReplacedError); !ok {
				err = fmt.Errorf("the step panics with %v, and its error is %v", e, err)
			}
		}()
		err = r.make(step, 7, 8)
		return err
	})
}

// A rank alone starts a replay while the one before it has not ended. It agrees with itself to stop.
func TestEmulatedReplaysOfOneRankFollowEachOther(t *testing.T) {
	onReplicas(t, commtest.FakeGPUs(t, 1), nil, training{}, func(r *replica) error {
		dev, pg := r.pg.Device(), r.pg
		step := r.capture(r.step)
		if err := errors.Join(r.make(step, 0, 6), dev.Compute().Sync(t.Context())); err != nil {
			return err
		}
		release := must.New(fakegpu.Control("hold"))
		defer release()
		held := must.New(dev.NewStream(false))
		if err := dev.Compute().WaitFor(held.Record()); err != nil {
			return err
		}
		runs := r.runs
		if r.model.Stopping() {
			return errors.New("the model stops before the request")
		}
		pg.RequestStop()
		waits := time.AfterFunc(10*time.Second, release)
		err := r.make(step, 6, 8)
		if !waits.Stop() {
			return errors.Join(errors.New("the steps waited for the device"), err)
		}
		done, _ := dev.Compute().Mark().Done()
		if committed, _ := r.opt.Committed(); err != nil || done || committed != 8 || r.runs != runs || !r.model.Stopping() {
			err = errors.Join(fmt.Errorf("after 8 steps, committed %d, the device is done: %t, the model stops: %t, %d uncaptured", committed, done, r.model.Stopping(), r.runs-runs), err)
		}
		var isReleased atomic.Bool
		time.AfterFunc(50*time.Millisecond, func() {
			isReleased.Store(true)
			release()
		})
		if err = errors.Join(err, r.make(step, 8, 9)); !isReleased.Load() {
			err = errors.Join(errors.New("three replays are under way"), err)
		}
		return errors.Join(err, dev.Compute().Sync(t.Context()), held.Close())
	})
}

// The outcome of a replay is known when its reductions have ended, although other work of the step still runs.
func TestEmulatedOutcomeIsKnownBeforeTheEndOfTheReplay(t *testing.T) {
	early := make([]int, 2)
	onReplicas(t, commtest.FakeGPUs(t, 2), nil, training{}, func(r *replica) error {
		dev := r.pg.Device()
		large := autograd.FromSlice(dev, make([]float32, 256*256), 256, 256)
		step := r.capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
			loss, err := r.step(in[0], in[1])
			autograd.NoGrad(dev, func() { autograd.MatMul(in[2], in[2]) })
			return loss, err
		})
		for n := range 8 {
			x, y := r.batch(n)
			if _, err := step(x, y, large); err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
			done, err := dev.Compute().Mark().Done()
			if err != nil {
				return err
			}
			if committed, _ := r.opt.Committed(); !done && committed == n+1 {
				early[r.pg.Rank()]++
			}
		}
		return nil
	})
	if slices.Min(early) == 0 {
		t.Errorf("the outcome was known before the end of %v of 8 steps", early)
	}
}

// A NaN on one rank is the error of Options.CheckNonFinite on all ranks, also in a loop of captured steps: these
// run uncaptured then.
func TestEmulatedNaNInALoopOfCapturedSteps(t *testing.T) {
	onReplicas(t, commtest.FakeGPUs(t, 2), nil, training{checks: true}, func(r *replica) error {
		step := autograd.Capture(r.pg.Device(), r.step, &autograd.CaptureOptions{Log: slog.New(slog.DiscardHandler)})
		if err := r.make(step, 0, 5); err != nil {
			return err
		}
		before := r.state(t)
		x, y := r.batch(5)
		if r.pg.Rank() == 1 {
			x = autograd.FromSlice(r.pg.Device(), slices.Repeat([]float32{float32(math.NaN())}, 4*8), 4, 8)
		}
		_, err := step(x, y)
		var found *reducer.NonFiniteError
		if !errors.As(err, &found) || len(found.Found) != 1 || found.Found[0].Rank != 1 || !bytes.Equal(before, r.state(t)) {
			return fmt.Errorf("rank %d: a NaN on rank 1 gave %v; equal parameters: %v", r.pg.Rank(), err, bytes.Equal(before, r.state(t)))
		}
		r.opt.ZeroGrad()
		err = r.make(step, 6, 9)
		if committed, consistent := r.opt.Committed(); err != nil || committed != 8 || !consistent {
			return fmt.Errorf("rank %d: %d of 8 steps are committed, consistent: %v; %w", r.pg.Rank(), committed, consistent, err)
		}
		return nil
	})
}

// If the group cannot capture its calls, the steps run uncaptured, and the group stays usable.
func TestEmulatedStepsOfAGroupThatCannotCapture(t *testing.T) {
	onReplicas(t, commtest.FakeGPUs(t, 2), &comm.Options{ErrorMode: comm.BlockingWait}, training{}, func(r *replica) error {
		err := r.make(autograd.Capture(r.pg.Device(), r.step, &autograd.CaptureOptions{Log: slog.New(slog.DiscardHandler)}), 0, 6)
		if committed, consistent := r.opt.Committed(); err != nil || committed != 6 || !consistent {
			return fmt.Errorf("%d of 6 steps are committed, consistent: %v; %w", committed, consistent, err)
		}
		return nil
	})
}

// The update can be captured apart from the passes before it. It waits for their reductions, knows their
// outcome, and does nothing if there is no gradient.
func TestEmulatedCapturedUpdateOfAModel(t *testing.T) {
	wantSame(t, training{}, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
		backward, update := stepFunc(r.backward), capture(func(...*autograd.Variable) (*autograd.Variable, error) {
			err := r.opt.Step()
			r.opt.ZeroGrad()
			return nil, err
		})
		for n := range 10 {
			if n == 5 {
				backward = capture(backward)
			}
			err := r.make(backward, n, n+1)
			for range 2 { // the second time there is no gradient
				if _, e := update(); e != nil {
					err = errors.Join(err, fmt.Errorf("update %d: %w", n, e))
				}
			}
			if committed, consistent := r.opt.Committed(); err != nil || committed != n+1 || !consistent {
				return "", fmt.Errorf("after update %d: %d are committed, consistent: %v; %w", n, committed, consistent, err)
			}
		}
		return "", nil
	})
}
