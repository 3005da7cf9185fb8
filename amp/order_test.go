package amp_test

import (
	"context"
	"slices"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// traced is a device that logs when updates are enqueued and when the host waits for the device.
// Each wait returns broken, if that is not nil.
type traced struct {
	device.Device
	values  kernels.Values
	log     []string
	scanned []uintptr // the addresses of the checked gradients
	broken  error
}

func (d *traced) Values() *kernels.Values { return &d.values }
func (d *traced) Kernels() device.Kernels { return tracedKernels{kernels.Of(d.Device), d} }
func (d *traced) Compute() device.Stream  { return tracedStream{d.Device.Compute(), d} }

type tracedKernels struct {
	kernels.Kernels
	d *traced
}

func (k tracedKernels) SGD(s device.Stream, steps ...kernels.SGDStep) error {
	for range steps {
		k.d.log = append(k.d.log, "update")
	}
	return k.Kernels.SGD(s, steps...)
}

func (k tracedKernels) NonFinite(s device.Stream, flag, x device.Tensor) error {
	k.d.scanned = append(k.d.scanned, x.Buf.Addr())
	return k.Kernels.NonFinite(s, flag, x)
}

type tracedStream struct {
	device.Stream
	d *traced
}

func (s tracedStream) Mark() device.Event { return tracedEvent{s.Stream.Mark(), s.d} }

type tracedEvent struct {
	device.Event
	d *traced
}

func (e tracedEvent) Sync(ctx context.Context) error {
	e.d.log = append(e.d.log, "wait")
	if e.d.broken != nil {
		return e.d.broken
	}
	return e.Event.Sync(ctx)
}

// Step enqueues all updates before the host waits, whether the gradients are finite or not. Unscale
// and Update do not wait.
func TestHostWaitsAfterUpdates(t *testing.T) {
	dev := &traced{Device: newDevice(t)}
	a, _ := scalar(dev, 1, 0)
	b, _ := scalar(dev, 1, 0)
	opt := must.New(optim.NewSGD([]*nn.Parameter{a, b}, &optim.SGDOptions{LR: 1}))
	s := must.New(amp.NewScaler(nil))
	for _, g := range []float32{1, inf} {
		for _, unscale := range []bool{false, true} {
			backward(t, s, a, g)
			backward(t, s, b, 1)
			dev.log = nil
			if unscale {
				if err := s.Unscale(opt); err != nil {
					t.Fatal(err)
				}
			}
			step(t, s, opt)
			s.Update()
			waits := slices.Index(dev.log, "wait")
			if waits < 0 || !slices.Equal(dev.log[:waits], []string{"update", "update"}) || slices.Contains(dev.log[waits:], "update") {
				t.Errorf("gradient %v, unscaled %v: %q, want the updates first", g, unscale, dev.log)
			}
		}
	}
}

// The check begins with the last parameter's gradient, which is reduced first, and does not wait
// for other gradients.
func TestCheckBeginsWithLastGradient(t *testing.T) {
	dev := &traced{Device: newDevice(t)}
	a, _ := scalar(dev, 1, 0)
	b, _ := scalar(dev, 1, 0)
	s := must.New(amp.NewScaler(nil))
	backward(t, s, a, 1)
	backward(t, s, b, 1)
	want := []uintptr{b.Grad().Tensor().Buf.Addr(), a.Grad().Tensor().Buf.Addr()}
	step(t, s, must.New(optim.NewSGD([]*nn.Parameter{a, b}, &optim.SGDOptions{LR: 1})))
	if !slices.Equal(dev.scanned, want) {
		t.Errorf("looked at gradients in %v, want b's and a's, in %v", dev.scanned, want)
	}
}
