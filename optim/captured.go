package optim

import (
	"errors"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
)

// Capturable returns o. It marks an optimizer that takes part in captured steps: see [autograd.Capture].
func (o *SGD) Capturable() any { return o }

// Capturable returns o. It marks an optimizer that takes part in captured steps: see [autograd.Capture].
func (o *AdamW) Capturable() any { return o }

// Capturable returns o. It marks an optimizer that takes part in captured steps: see [autograd.Capture].
func (o *RMSProp) Capturable() any { return o }

// capture captures a step: see [autograd.Capture]. The state on the host changes when it is replayed.
func (o *optimizer) capture(r *capture.Step, s Scaled) error {
	s.captured = r.Scaled
	switch {
	case o.capturing == r:
		return r.Refuse("Step was called twice for one optimizer")
	case s.captured == nil && (s.LossScale != 0 || !s.Overflow.IsZero()):
		return r.Refuse("the loss scale is a number on the host")
	}
	capture.Undo(r, &o.capturing)
	o.capturing = r
	ready, hook := slices.Clone(o.ready), o.hook
	r.Require(func() bool {
		return o.hook == hook && o.inconsistent == nil && !slices.ContainsFunc(ready, func(s *slot) bool { return s.unused })
	})
	r.Before(func() error {
		o.set(o.steps, true)
		return nil
	})
	s.capturing = r
	if _, err := o.update(s); err != nil {
		return err
	}
	s.capturing = nil
	copy(ready, o.ready) // outcomes are queried in the order of the updates
	asked := ready
	if skipTogether(ready) { // their outcome is one; between it and the next launch the GPU waits for the host
		asked = ready[:1]
	}
	r.After(func(err error) error {
		if errors.As(err, new(*capture.NotLaunchedError)) {
			if o.inconsistent == nil {
				o.set(o.steps, false)
			}
			return nil
		}
		o.ready = append(o.ready[:0], ready...)
		err = o.conclude(asked, s, 0, err)
		if s.captured != nil {
			err = s.captured.Conclude(err)
		}
		return err
	})
	return nil
}

// scale returns the loss scale of the replay that is about to be launched.
func (s Scaled) scale() float64 {
	if s.captured != nil {
		return s.captured.Scale()
	}
	return s.LossScale
}

// numbers returns the device memory from which captured updates read numbers that change from step to
// step, or the zero Tensor if no step is being captured. Updates with the same key share numbers. now
// returns the n numbers of the step that is about to be replayed.
func (s Scaled) numbers(key any, n int, now func() []float64) device.Tensor {
	if s.capturing == nil {
		return device.Tensor{}
	}
	return s.capturing.Words(key, device.Float64, n, func(bits []int64) {
		for i, v := range now() {
			bits[i] = int64(math.Float64bits(v))
		}
	})
}

// requireSame adds a guard for a group of parameters: the capture is replayed only while the options of the group are
// unchanged and check returns nil. An invalid option is an error of Step, before anything is launched.
func requireSame[O comparable](s Scaled, group any, check func() error, options func() O) {
	captured := options()
	s.capturing.RequireOnce(group, func() bool { return options() == captured && check() == nil })
}
