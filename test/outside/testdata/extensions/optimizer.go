package extensions

import (
	"sync/atomic"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// descent is plain gradient descent. It has no state but its number of steps.
type descent struct {
	params []*nn.Parameter
	rate   float64
	steps  atomic.Int64
}

var _ optim.Optimizer = (*descent)(nil)

func (d *descent) Parameters() []*nn.Parameter  { return d.params }
func (d *descent) Committed() (int, bool)       { return int(d.steps.Load()), true }
func (d *descent) State() ([]*nn.Buffer, error) { return nil, nil }
func (d *descent) BeginLoad()                   {}
func (d *descent) EndLoad(steps int)            { d.steps.Store(int64(steps)) }

func (d *descent) ZeroGrad() {
	for _, p := range d.params {
		p.Var().ZeroGrad()
	}
}

func (d *descent) Step() error {
	for _, p := range d.params {
		grad := p.Grad()
		if err := grad.Err(); err != nil {
			return err
		}
		dev := p.Var().Device()
		step := device.Accum{Alpha: -d.rate, Beta: 1}
		if err := dev.Kernels().Axpby(dev.Compute(), p.Var().Tensor(), step, grad.Tensor()); err != nil {
			return err
		}
		p.Var().BumpVersion()
	}
	d.steps.Add(1)
	return nil
}
