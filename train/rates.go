package train

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
)

// count counts the tokens and the operations of a step. b is one of its batches. The steps of the ranks are alike.
func (r *run) count(samples int, b *data.Batch) {
	if x := b.Vars[0]; !x.DType().IsFloat() && len(x.Shape()) > 1 {
		r.meter.Count("tokens", float64(samples*x.Shape().Len()/x.Shape()[0]))
	}
	flops := r.work.add(r.pg.Device()) * float64(r.pg.Size())
	if r.FLOPs > 0 {
		flops = r.FLOPs * float64(samples)
	}
	if flops > 0 {
		r.meter.Count("flops", flops)
	}
}

// peak returns the number of operations that the devices of all ranks can make in a second, or 0 if that is not known.
func (r *run) peak() float64 {
	each := r.PeakFLOPS
	if each == 0 {
		each = r.work.peak(r.pg.Device())
	}
	return each * float64(r.pg.Size())
}

// work counts the operations of this rank's steps.
type work struct {
	seen, steps [len(floats)]float64 // by floats: what autograd has counted, and that of the steps
}

var floats = [...]device.DType{device.Float64, device.Float32, device.BFloat16, device.Float16}

// skip leaves out what autograd has counted since the last step, such as an evaluation.
func (w *work) skip(dev device.Device) {
	for i, dt := range floats {
		w.seen[i] = autograd.Operations(dev, dt)
	}
}

// add returns the number of operations of a step.
func (w *work) add(dev device.Device) (all float64) {
	before := w.seen
	w.skip(dev)
	for i, n := range w.seen {
		w.steps[i] += n - before[i]
		all += n - before[i]
	}
	return all
}

// peak returns how many operations the device can make in a second, if they have the types of the steps' ones. It returns 0 if the
// device does not know it.
func (w *work) peak(dev device.Device) float64 {
	d, ok := dev.(interface {
		PeakFLOPS(device.DType) float64
	})
	if !ok {
		return 0
	}
	all, seconds := 0.0, 0.0
	for i, n := range w.steps {
		if n == 0 {
			continue
		}
		peak := d.PeakFLOPS(floats[i])
		if peak == 0 {
			return 0
		}
		all, seconds = all+n, seconds+n/peak
	}
	if seconds == 0 {
		return 0
	}
	return all / seconds
}
