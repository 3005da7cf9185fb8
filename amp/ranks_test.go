package amp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// perceptron returns a network whose parameters have type dt. It computes in float32, because a CPU
// does not compute in 16-bit types.
func perceptron(dt device.DType) nn.Module {
	o := nn.LinearOptions{DType: dt, Compute: device.Float32}
	return nn.Sequential(nn.Linear(6, 24, &o), nn.ReLU(), nn.Linear(24, 24, &o), nn.ReLU(), nn.Linear(24, 2, &o))
}

// batch returns inputs and the outputs that a network should learn.
func batch(dev device.Device, seed uint64, rows int) (x, y *autograd.Variable) {
	in := autograd.Zeros(dev, device.Float32, rows, 6)
	if err := kernels.Of(dev).Normal(dev.Compute(), in.Tensor(), 0, 1, seed, 0); err != nil {
		panic(err)
	}
	data := device.Elements[float32](in.Tensor())
	want := make([]float32, 0, 2*rows)
	for r := range rows {
		v := data[6*r:]
		want = append(want, float32(math.Sin(float64(v[0]+v[1]))), v[2]*v[3]/2)
	}
	return in, autograd.FromSlice(dev, want, rows, 2)
}

// Training in Float16 finds a scale, skips steps until then, and then converges. When one rank
// overflows, all ranks skip the step. Scales and parameters stay equal on all ranks.
func TestFloat16OnTwoRanks(t *testing.T) {
	const ranks, steps, bad = 2, 120, 60
	for _, isLagging := range []bool{false, true} {
		t.Run(fmt.Sprintf("lagging: %v", isLagging), func(t *testing.T) {
			devices := make([]device.Device, ranks)
			for r := range devices {
				if devices[r] = newDevice(t); isLagging {
					devices[r] = devicetest.Lagging(devices[r])
				}
			}
			scales, params := make([][]float64, ranks), make([][]byte, ranks)
			commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
				dev, rank := pg.Device(), pg.Rank()
				model := must.New(ddp.New(perceptron(device.Float16), pg, nil))
				opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.05, Momentum: 0.9, MasterWeights: true}))
				scaler := must.New(amp.NewScaler(&amp.Options{InitScale: 0x1p30, GrowthInterval: 1000}))
				var first, last float64
				for i := range steps {
					x, y := batch(dev, uint64(ranks*(i%4)+rank), 32)
					if i == bad && rank == 1 {
						device.Elements[float32](x.Tensor())[0] = 1e30
					}
					loss := nn.MSELoss(model.Forward(x), y, nil)
					before, whole := opt.Committed()
					if err := errors.Join(scaler.Scale(loss).Backward(nil), scaler.Step(opt)); err != nil {
						return err
					}
					after, still := opt.Committed()
					was := scaler.GetScale()
					scaler.Update()
					skipped := after == before
					if skipped != (scaler.GetScale() == was/2) || !whole || !still {
						return fmt.Errorf("step %d: %d steps committed, then %d; the scale went from %v to %v", i, before, after, was, scaler.GetScale())
					}
					if i == 0 && !skipped || i == bad && !skipped || i > 40 && i != bad && skipped {
						return fmt.Errorf("step %d at scale %v: skipped %v", i, was, skipped)
					}
					scales[rank] = append(scales[rank], scaler.GetScale())
					if i == 0 {
						first = loss.Item()
					}
					last = loss.Item()
					opt.ZeroGrad()
				}
				if !(last < first/3) {
					return fmt.Errorf("the loss went from %v to %v", first, last)
				}
				for _, p := range model.Parameters() {
					params[rank] = append(params[rank], p.Var().Tensor().Buf.Host()...)
				}
				return nil
			})
			if !slices.Equal(scales[0], scales[1]) || !bytes.Equal(params[0], params[1]) {
				t.Errorf("the ranks' scales are %v, their parameters equal: %v", scales, bytes.Equal(params[0], params[1]))
			}
		})
	}
}

// With Options.Group, ranks with different gradients agree on each step. Without it, only the rank
// whose gradient overflows skips the step.
func TestRankLocalOverflow(t *testing.T) {
	for _, agree := range []bool{true, false} {
		scales, values := make([]float64, 2), make([]float64, 2)
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			p, opt := scalar(pg.Device(), 1, 0.5)
			var o amp.Options
			if agree {
				o.Group = pg
			}
			scaler := must.New(amp.NewScaler(&o))
			for i := range 4 {
				g := float32(1)
				if i == 1 && pg.Rank() == 1 {
					g = inf
				}
				backward(t, scaler, p, g)
				if i >= 2 {
					if err := scaler.Unscale(opt); err != nil {
						return err
					}
				}
				if err := scaler.Step(opt); err != nil {
					return err
				}
				scaler.Update()
			}
			scales[pg.Rank()], values[pg.Rank()] = scaler.GetScale(), p.Item()
			return nil
		})
		wantScales, wantValues := []float64{32768, 32768}, []float64{-0.5, -0.5}
		if !agree {
			wantScales, wantValues = []float64{65536, 32768}, []float64{-1, -0.5}
		}
		if !slices.Equal(scales, wantScales) || !slices.Equal(values, wantValues) {
			t.Errorf("with a group %v: scales %v, parameters %v; want %v, %v", agree, scales, values, wantScales, wantValues)
		}
	}
}

// If the group fails while the ranks agree, Step returns the error. On a CPU, which runs work at
// once, the parameter has not changed.
func TestAgreementFails(t *testing.T) {
	commtest.OnRanks(t, 2, &comm.Options{Log: slog.New(slog.DiscardHandler)}, func(pg *comm.ProcessGroup) error {
		p, opt := scalar(pg.Device(), 1, 0.5)
		scaler := must.New(amp.NewScaler(&amp.Options{Group: pg}))
		if pg.Rank() == 1 {
			pg.Abort(errors.New("rank 1 gives up"))
			return nil
		}
		backward(t, scaler, p, 1)
		if err := scaler.Step(opt); err == nil || p.Item() != 1 || committed(opt) != 0 {
			return fmt.Errorf("Step returned %v, the parameter is %v", err, p.Item())
		}
		return nil
	})
}

// poor is a device that cannot allocate a byte of host memory.
type poor struct {
	device.Device
	values kernels.Values
}

var errPoor = errors.New("no memory")

func (d *poor) Values() *kernels.Values { return &d.values }
func (d *poor) AllocHost(size int) (device.Buffer, error) {
	if size == 1 {
		return device.Buffer{}, errPoor
	}
	return d.Device.AllocHost(size)
}

// If one rank has no memory for the agreement, all ranks get its error.
func TestAgreementWithoutMemory(t *testing.T) {
	devices := []device.Device{&poor{Device: newDevice(t)}, newDevice(t)}
	commtest.OnDevices(t, devices, &comm.Options{Log: slog.New(slog.DiscardHandler)}, func(pg *comm.ProcessGroup) error {
		p, opt := scalar(pg.Device(), 1, 0.5)
		scaler := must.New(amp.NewScaler(&amp.Options{Group: pg}))
		backward(t, scaler, p, 1)
		err := scaler.Step(opt)
		if err == nil || !strings.Contains(err.Error(), errPoor.Error()) || p.Item() != 1 {
			return fmt.Errorf("Step returned %v, want that rank 0 has no memory; the parameter is %v", err, p.Item())
		}
		return nil
	})
}

func TestAgree(t *testing.T) {
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		scaler := must.New(amp.NewScaler(nil)) // rank 2 has the state of a new scaler
		switch pg.Rank() {
		case 0:
			restore(t, scaler, state{Scale: 512, GrowthTracker: 9})
		case 1:
			restore(t, scaler, state{Scale: 512, GrowthTracker: 8})
		}
		if err := scaler.Agree(context.Background(), pg); err != nil {
			return err
		}
		if got := stateOf(t, scaler); got != (state{Scale: 512, GrowthTracker: 8}) {
			return fmt.Errorf("rank %d: %+v", pg.Rank(), got)
		}
		return nil
	})
}
