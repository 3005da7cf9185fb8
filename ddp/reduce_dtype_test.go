package ddp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// narrow is an operation whose gradient g for x has x's type, as on devices that compute in 16
// bits.
type narrow struct{ t *testing.T }

func (narrow) Name() string                         { return "narrow" }
func (narrow) Shape(in []device.Shape) device.Shape { return in[0] }
func (narrow) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (n narrow) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if dst.DType != g.DType {
		n.t.Errorf("an operation on %v was asked for a gradient in %v", g.DType, dst.DType)
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// halfModel has one parameter of 16 bits.
type halfModel struct {
	w      *nn.Parameter
	narrow narrow
}

func (m halfModel) Parameters() []*nn.Parameter { return []*nn.Parameter{m.w} }

// Forward multiplies the parameter by each element of x and sums in float32.
func (m halfModel) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(autograd.Cast(autograd.Apply(m.narrow, m.w.Var()), device.Float32), x)
}

// With ReduceDType the gradients of 16-bit parameters are accumulated and reduced in float32. Sums
// that 8 bits of precision cannot hold survive: within a rank, over accumulating passes, and
// between ranks. The optimizer's masters use them.
func TestReduceDType(t *testing.T) {
	for _, dt := range []device.DType{device.Invalid, device.Float32} {
		t.Run(dt.String(), func(t *testing.T) {
			onBoth(t, 2, func(pg *comm.ProcessGroup, isLagging bool) error {
				dev := pg.Device()
				buf, err := dev.Alloc(2)
				if err != nil {
					return err
				}
				w := autograd.FromTensor(dev, device.NewTensor(buf, device.BFloat16))
				if err := dev.Kernels().Fill(dev.Compute(), w.Tensor(), 1); err != nil {
					return err
				}
				m := halfModel{nn.NewParameter("w", w), narrow{t}}
				model, err := New(m, pg, &Options{ReduceDType: dt})
				if err != nil {
					return err
				}
				opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1, MasterWeights: true}))
				// One rank has 256 and the other 1, three times: BFloat16 cannot hold 385.5, their
				// average.
				x := autograd.Scalar(dev, float32(1+255*pg.Rank()))
				pass := func() error { return model.Forward(x).Backward() }
				if err := model.NoSync(func() error { return errors.Join(pass(), pass()) }); err != nil {
					return err
				}
				if err := pass(); err != nil {
					return err
				}
				g := w.Grad()
				want, in := 385.5, device.Float32
				if dt == device.Invalid {
					want, in = 386, device.BFloat16
				}
				if got := g.Item(); got != want || g.DType() != in {
					return fmt.Errorf("the gradient is %v in %v, want %v in %v", got, g.DType(), want, in)
				}
				if err := opt.Step(); err != nil {
					return err
				}
				state, err := opt.State()
				if err != nil {
					return err
				}
				if got := state[0].Var().Item(); got != 1-want {
					return fmt.Errorf("the master is %v, want %v", got, 1-want)
				}
				return nil
			})
		})
	}
}

// A mixed-precision network reaches the same loss with gradients in float32, which its layers write
// directly, and the ranks stay equal.
func TestReduceDTypeTrains(t *testing.T) {
	onBoth(t, 2, func(pg *comm.ProcessGroup, isLagging bool) error {
		const width, rows, steps = 16, 8, 40
		dev := pg.Device()
		train := func(o *Options) (last float64, err error) {
			layer := func() nn.Module {
				return nn.Linear(width, width, nn.LinearOptions{Compute: device.Float32, DType: device.BFloat16})
			}
			model, err := New(nn.Sequential(layer(), nn.ReLU(), layer()), pg, o)
			if err != nil {
				return 0, err
			}
			for _, p := range model.Parameters() {
				if o != nil && model.reducer.Grad(0).DType != device.Float32 {
					return 0, fmt.Errorf("the gradient of %s is in %v", p.Name(), model.reducer.Grad(0).DType)
				}
			}
			opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.5, MasterWeights: true}))
			for step := range steps {
				x := autograd.Zeros(dev, device.Float32, rows, width)
				if err := kernels.Of(dev).Normal(dev.Compute(), x.Tensor(), 0, 1, uint64(step%4), uint64(pg.Rank()*rows*width)); err != nil {
					return 0, err
				}
				loss := nn.MSELoss(model.Forward(x), x)
				if err := errors.Join(loss.Backward(), opt.Step()); err != nil {
					return 0, err
				}
				opt.ZeroGrad()
				last = loss.Item()
			}
			all, err := comm.AllGatherObject(context.Background(), pg, string(parameterBytes(model.Parameters())))
			if err == nil && all[0] != all[1] {
				err = errors.New("the ranks' parameters differ")
			}
			return last, err
		}
		narrow, err := train(nil)
		if err != nil {
			return err
		}
		wide, err := train(&Options{ReduceDType: device.Float32})
		if err != nil || !(math.Abs(wide/narrow-1) < 0.02) {
			return fmt.Errorf("a loss of %v, with gradients in bfloat16 %v: %v", wide, narrow, err)
		}
		return nil
	})
}

func TestReduceDTypesThatDiffer(t *testing.T) {
	onBoth(t, 2, func(pg *comm.ProcessGroup, isLagging bool) error {
		layer := func() nn.Module { return nn.Linear(3, 3, nn.LinearOptions{DType: device.BFloat16}) }
		_, err := New(layer(), pg, &Options{ReduceDType: []device.DType{device.Invalid, device.Float32}[pg.Rank()]})
		if mismatch := (*reducer.ModelMismatchError)(nil); !errors.As(err, &mismatch) {
			return fmt.Errorf("got %v", err)
		}
		if _, err = New(layer(), pg, &Options{ReduceDType: device.BFloat16}); err == nil || !strings.Contains(err.Error(), "ReduceDType is bfloat16, want float32") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}
