package ddp

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// precision is the type of parameters and the type of products. Invalid means that products have
// the parameters' type.
type precision struct{ params, compute device.DType }

func (p precision) String() string { return fmt.Sprintf("%v computed in %v", p.params, p.compute) }

// mixed trains a network in float32 and in the given precisions with master weights. The losses
// must agree with that of float32 within a relative tolerance. There are enough steps to
// distinguish this from training without masters, where the loss of bfloat16 differs by 2%.
func mixed(pg *comm.ProcessGroup, tolerance float64, others ...precision) error {
	const width, rows, steps, last = 32, 32, 300, 50 // committed steps: a batch is repeated until its step is committed
	dev := pg.Device()
	normal := func(std float64, seed uint64, shape ...int) *autograd.Variable {
		v := autograd.Zeros(dev, device.Float32, shape...)
		if err := kernels.Of(dev).Normal(dev.Compute(), v.Tensor(), 0, std, seed, 0); err != nil {
			panic(err)
		}
		return v
	}
	teacher := normal(0.3, 1, width, width)
	train := func(kind precision) (loss float64, err error) {
		dt, o := kind.params, nn.LinearOptions{Compute: kind.compute}
		net := nn.Sequential(nn.Linear(width, width, &o), nn.ReLU(), nn.Linear(width, width, &o), nn.ReLU(), nn.Linear(width, width, &o))
		if err := nn.Cast(net, dt, nil); err != nil {
			return 0, err
		}
		model, err := New(net, pg, nil)
		if err != nil {
			return 0, err
		}
		opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.5, Momentum: 0.9, MasterWeights: true}))
		scaler := must.New(amp.NewScaler(&amp.Options{InitScale: 0x1p30, Disabled: dt != device.Float16}))
		made, skipped := 0, 0
		for made < steps && skipped < 64 {
			x := normal(1, uint64(2+made*pg.Size()+pg.Rank()), rows, width)
			y := autograd.Tanh(autograd.MatMul(x, teacher))
			l := nn.MSELoss(model.Forward(x), y, nil)
			if err := scaler.Scale(l).Backward(nil); err != nil {
				return 0, err
			}
			if err := scaler.Step(opt); err != nil {
				return 0, err
			}
			scaler.Update()
			opt.ZeroGrad()
			if n, whole := opt.Committed(); !whole {
				return 0, fmt.Errorf("%v: step %d is not whole", dt, n)
			} else if n == made {
				skipped++
				continue
			}
			if made++; made > steps-last {
				loss += l.Item() / last
			}
		}
		if (skipped > 0) != (dt == device.Float16) || dt == device.Float16 && scaler.GetScale() != math.Ldexp(1, 30-skipped) {
			return 0, fmt.Errorf("%v: %d steps and %d skipped, scale %v", dt, made, skipped, scaler.GetScale())
		}
		scales, err := comm.AllGatherObject(context.Background(), pg, scaler.GetScale())
		if err != nil {
			return 0, err
		}
		for rank, scale := range scales {
			if scale != scales[0] {
				return 0, fmt.Errorf("%v: rank %d has the scale %v, rank 0 %v", dt, rank, scale, scales[0])
			}
		}
		return loss, nil
	}
	want, err := train(precision{params: device.Float32})
	if err != nil {
		return err
	}
	for _, kind := range others {
		got, err := train(kind)
		if err != nil {
			return err
		}
		fmt.Printf("rank %d: %v: %v, float32 %v\n", pg.Rank(), kind, got, want)
		if !(math.Abs(got/want-1) <= tolerance) {
			return fmt.Errorf("%v comes to the loss %v, float32 to %v", kind, got, want)
		}
	}
	return nil
}

func TestMixedPrecision(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		return mixed(pg, 0.01, precision{device.BFloat16, device.Float32}, precision{device.Float16, device.Float32})
	})
}
