package ddp

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
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
				buf := must.New(dev.Alloc(2))
				w := autograd.FromTensor(dev, device.NewTensor(buf, device.BFloat16))
				if err := dev.Kernels().Fill(dev.Compute(), w.Tensor(), 1); err != nil {
					return err
				}
				m := halfModel{nn.NewParameter("w", w), narrow{t}}
				model := must.New(New(m, pg, &Options{ReduceDType: dt}))
				opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1, MasterWeights: true}))
				// One rank has 256 and the other 1, three times: BFloat16 cannot hold 385.5, their
				// average.
				x := autograd.Scalar(dev, float32(1+255*pg.Rank()))
				pass := func() error { return model.Forward(x).Backward(nil) }
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
				state := must.New(opt.State())
				if got := state[0].Var().Item(); got != 1-want {
					return fmt.Errorf("the master is %v, want %v", got, 1-want)
				}
				return nil
			})
		})
	}
}

// A layer that computes in float32 writes gradients in float32 directly: they are those of a layer whose parameters are
// in float32, bit for bit.
func TestReduceDTypeRoundsNothing(t *testing.T) {
	onBoth(t, 2, func(pg *comm.ProcessGroup, isLagging bool) error {
		grads := func(dt device.DType, o *Options) []byte {
			net := nn.Sequential(nn.Linear(16, 16, &nn.LinearOptions{Compute: device.Float32}), nn.ReLU(), nn.Linear(16, 16, &nn.LinearOptions{Compute: device.Float32}))
			if err := errors.Join(nn.Place(net, pg.Device(), 1), nn.Cast(net, device.BFloat16, nil), nn.Cast(net, dt, nil)); err != nil {
				panic(err)
			}
			model := must.New(New(net, pg, o))
			x := autograd.Cast(samples(pg.Device(), 1, 16, 16, pg.Rank(), pg.Size()), device.Float32)
			if err := nn.MSELoss(model.Forward(x), x, nil).Backward(nil); err != nil {
				panic(err)
			}
			var all []byte
			for _, p := range model.Parameters() {
				all = append(all, bytesOf(p.Grad())...)
			}
			return all
		}
		if !bytes.Equal(grads(device.BFloat16, &Options{ReduceDType: device.Float32}), grads(device.Float32, nil)) {
			return errors.New("the gradients of 16-bit parameters are rounded")
		}
		return nil
	})
}
