package train

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// count counts the tokens and the operations of a step. b is one of its batches. The steps of the ranks are alike.
func (r *run) count(samples int, b *data.Batch) {
	if x := b.Vars[0]; !x.DType().IsFloat() && len(x.Shape()) > 1 {
		r.meter.Count("tokens", float64(samples*x.Shape().Len()/x.Shape()[0]))
	}
	now := autograd.Operations(r.pg.Device())
	flops := (now - r.operations) * float64(r.pg.Size())
	if r.operations = now; r.FLOPs > 0 {
		flops = r.FLOPs * float64(samples)
	}
	if flops > 0 {
		r.meter.Count("flops", flops)
	}
}

// peak returns the number of operations that the device can make in a second in the type that most parameters have, or 0 if the
// device does not know it.
func peak(dev device.Device, parameters []*nn.Parameter) float64 {
	d, ok := dev.(interface {
		PeakFLOPS(device.DType) float64
	})
	if !ok {
		return 0
	}
	elements, most := map[device.DType]int{}, device.Float32
	for _, p := range parameters {
		dt := p.Var().DType()
		if elements[dt] += p.Var().Shape().Len(); elements[dt] > elements[most] {
			most = dt
		}
	}
	return d.PeakFLOPS(most)
}
