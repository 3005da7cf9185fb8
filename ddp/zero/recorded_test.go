//go:build cgo && linux

package zero_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// sharded is what a rank ends with.
type sharded struct {
	losses    []float64
	committed []int // the number of committed steps after each step
	state     []byte
}

// trainSharded makes steps with a schedule, dropout and accumulated gradients, on ranks below captured with
// captured steps. In step missing, rank 1 has no gradient of the last layer; if missing is -1, gradients are
// clipped.
func trainSharded(t *testing.T, devices []device.Device, steps, captured, missing int, scaled bool) []sharded {
	t.Helper()
	all := make([]sharded, len(devices))
	commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
		dev := pg.Device()
		autograd.Generator(dev).Seed(3)
		net := nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
		model, opt, err := zero.New(net, pg, func(p []*nn.Parameter) (*optim.AdamW, error) {
			return optim.NewAdamW(p, &optim.AdamWOptions{LR: 0.01})
		}, &ddp.Options{BucketCapMB: 0.01})
		if err != nil {
			return err
		}
		scaler, err := amp.NewScaler(&amp.Options{InitScale: 1 << 10, GrowthInterval: 7, Disabled: !scaled})
		if err != nil {
			return err
		}
		runs, partial := 0, false
		backward := func(in ...*autograd.Variable) (*autograd.Variable, error) {
			runs++
			y := model.Forward(in[0])
			if partial {
				y = model.Output(model.Parameters()[0].Var())
				y = autograd.Sum(autograd.Mul(y, y))
				return y, scaler.Scale(y).Backward()
			}
			loss := nn.MSELoss(y, in[1])
			return loss, scaler.Scale(loss).Backward()
		}
		plain := func(in ...*autograd.Variable) (*autograd.Variable, error) {
			loss, err := backward(in...)
			if err == nil {
				err = scaler.Unscale(opt)
			}
			if err == nil && missing < 0 {
				_, err = opt.ClipGradNorm(1)
			}
			if err == nil {
				err = scaler.Step(opt)
			}
			scaler.Update()
			opt.ZeroGrad()
			return loss, err
		}
		step, accumulate := plain, backward
		if pg.Rank() < captured {
			step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
			accumulate = autograd.Capture(dev, accumulate, &autograd.CaptureOptions{Required: true})
		}
		batch := func(n int) (x, y *autograd.Variable) {
			values := func(columns int) *autograd.Variable {
				data := make([]float32, 4*columns)
				for i := range data {
					data[i] = float32((7*i+3*n+5*pg.Rank())%11)/11 - 0.5
				}
				if scaled && n%10 == 9 && pg.Rank() == 1 && columns == 8 {
					data[0] = float32(math.Inf(1))
				}
				return autograd.FromSlice(dev, data, 4, columns)
			}
			return values(8), values(4)
		}
		mine := &all[pg.Rank()]
		for n := range steps {
			opt.SetLR(0.01 / float64(n+1))
			for i := range n % 3 {
				if err := model.NoSync(func() error {
					_, err := accumulate(batch(n + 100*i))
					return err
				}); err != nil {
					return fmt.Errorf("step %d, batch %d: %w", n, i, err)
				}
			}
			do := step
			if n == missing && pg.Rank() == 1 {
				do, partial = plain, true
			}
			loss, err := do(batch(n))
			partial = false
			switch {
			case n == missing && !errors.Is(err, device.ErrSkipped):
				return fmt.Errorf("rank %d: the step without a gradient gave %v", pg.Rank(), err)
			case n == missing:
				opt.ZeroGrad()
			case err != nil:
				return fmt.Errorf("step %d: %w", n, err)
			default:
				mine.losses = append(mine.losses, loss.Item())
			}
			committed, whole := opt.Committed()
			if !whole {
				return fmt.Errorf("rank %d is inconsistent after step %d", pg.Rank(), n)
			}
			mine.committed = append(mine.committed, committed)
		}
		if pg.Rank() < captured && runs > 16 {
			return fmt.Errorf("rank %d ran its step function %d times", pg.Rank(), runs)
		}
		for _, p := range model.Parameters() {
			b, err := p.Var().Bytes(t.Context())
			if err != nil {
				return err
			}
			mine.state = append(mine.state, b...)
		}
		return nil
	})
	return all
}

// Captured steps of a sharded optimizer give the losses and parameters of steps that are not captured, bit
// for bit, and skip the same steps, also if only one rank captures.
func TestCapturedShardedSteps(t *testing.T) {
	for name, c := range map[string]struct {
		steps, missing int
		scaled         bool
	}{
		"clipped":               {40, -1, false},
		"clipped and scaled":    {100, -1, true},
		"a gradient is missing": {40, 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			want := trainSharded(t, commtest.FakeGPUs(t, 2), c.steps, 0, c.missing, c.scaled)
			for captured := 1; captured <= 2; captured++ {
				got := trainSharded(t, commtest.FakeGPUs(t, 2), c.steps, captured, c.missing, c.scaled)
				equalSharded(t, got, want, captured)
			}
		})
	}
}

// equalSharded fails the test unless each rank ends with what is wanted, bit for bit.
func equalSharded(t *testing.T, got, want []sharded, captured int) {
	t.Helper()
	for r := range got {
		same := slices.EqualFunc(got[r].losses, want[r].losses, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
		if !same || !slices.Equal(got[r].committed, want[r].committed) || !bytes.Equal(got[r].state, want[r].state) {
			t.Errorf("with %d ranks that capture, rank %d has equal losses: %v; committed %v, want %v; equal parameters: %v", captured, r,
				same, got[r].committed, want[r].committed, bytes.Equal(got[r].state, want[r].state))
		}
	}
}

// On GPUs captured steps of a sharded optimizer, with NCCL in the graph, equal those that are not captured too.
func TestGPUCapturedShardedSteps(t *testing.T) {
	devices := commtest.OpenGPUs(t, 2, 4)
	for _, scaled := range []bool{false, true} {
		want := trainSharded(t, devices, 100, 0, -1, scaled)
		equalSharded(t, trainSharded(t, devices, 100, len(devices), -1, scaled), want, len(devices))
	}
}

// Accumulation within a captured step is captured too, and gives the same parameters.
func TestNoSyncWithinACapturedStep(t *testing.T) {
	var all [2][2][]byte // parameters, by whether steps are captured and by rank
	for i := range all {
		commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
			net := nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
			model, opt, err := zero.New(net, pg, func(p []*nn.Parameter) (*optim.AdamW, error) {
				return optim.NewAdamW(p, &optim.AdamWOptions{LR: 0.01})
			}, &ddp.Options{BucketCapMB: 0.01})
			if err != nil {
				return err
			}
			runs := 0
			step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
				runs++
				loss := func() *autograd.Variable { return nn.MSELoss(model.Forward(in[0]), in[1]) }
				if err := model.NoSync(func() error { return loss().Backward() }); err != nil {
					return nil, err
				}
				err := loss().Backward()
				if err == nil {
					err = opt.Step()
				}
				opt.ZeroGrad()
				return nil, err
			}
			if i == 1 {
				step = autograd.Capture(pg.Device(), step, &autograd.CaptureOptions{Required: true})
			}
			x, y := make([]float32, 4*8), make([]float32, 4*4)
			for k := range x {
				x[k] = float32((7*k+5*pg.Rank())%11)/11 - 0.5
			}
			for n := range 12 {
				if _, err := step(autograd.FromSlice(pg.Device(), x, 4, 8), autograd.FromSlice(pg.Device(), y, 4, 4)); err != nil {
					return fmt.Errorf("step %d: %w", n, err)
				}
			}
			if i == 1 && runs > 5 {
				return fmt.Errorf("12 captured steps ran the step function %d times", runs)
			}
			for _, p := range model.Parameters() {
				b, err := p.Var().Bytes(t.Context())
				if err != nil {
					return err
				}
				all[i][pg.Rank()] = append(all[i][pg.Rank()], b...)
			}
			return nil
		})
	}
	for i := range all {
		for rank, got := range all[i] {
			if !bytes.Equal(got, all[0][0]) {
				t.Errorf("captured: %v, rank %d: other parameters than those of rank 0 uncaptured", i == 1, rank)
			}
		}
	}
}
