package amp

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/optim"
)

// In a captured step ([autograd.Capture]) the kernels read the scale from device memory, and the device
// decides whether to skip, as it always does. What Unscale, Step and Update do on the host, each replay
// does after its launch.

// capture notes that the captured step uses the check of opt, and restores the check when the capture ends.
func (s *Scaler) capture(r *capture.Step, opt optim.Optimizer, c *check) {
	if c.capturing == r {
		return
	}
	phase := c.phase
	r.Require(func() bool { return s.checks[opt] == c && c.phase == phase })
	capture.Undo(r, c)
	c.capturing = r
}

// replays makes each replay set the phase.
func (c *check) replays(to phase) {
	c.capturing.After(func(err error) error {
		if err == nil {
			c.phase = to
		}
		return nil
	})
}

// scaleKey is the key of the words that hold the scale, or its inverse.
type scaleKey struct {
	s       *Scaler
	dt      device.DType
	inverse bool
}

// scaleOnDevice returns the scale of each replay, or its inverse, as a scalar of dt in device memory; the zero
// Tensor if dt cannot represent every scale.
func (s *Scaler) scaleOnDevice(r *capture.Step, dt device.DType, inverse bool) device.Tensor {
	if dt != device.Float32 && dt != device.Float64 {
		return device.Tensor{}
	}
	w := r.Words(scaleKey{s, dt, inverse}, device.Float64, 1, func(bits []int64) {
		v := s.state.Scale
		if inverse {
			v = 1 / v
		}
		bits[0] = int64(math.Float64bits(v))
		if dt == device.Float32 {
			bits[0] = int64(math.Float32bits(float32(v)))
		}
	})
	if w.IsZero() { // no memory: the capture fails
		return w
	}
	return device.NewTensor(w.Buf.Slice(0, dt.Size()), dt)
}

// captureStep is the end of Step in a step that is being captured. isUnscaled reports whether Unscale has
// divided the gradients.
func (s *Scaler) captureStep(c *check, stepper optim.ScaledStepper, scaled optim.Scaled, isUnscaled bool) error {
	if !capture.IsCapturable(stepper) {
		return c.capturing.Refuse("%T does not take part in captured steps", stepper)
	}
	concluded := false
	r := c.capturing
	r.Scaled = &capture.ScaledStep{
		Scale: func() float64 {
			if isUnscaled {
				return 1
			}
			return s.state.Scale
		},
		Conclude: func(err error) error {
			concluded, c.phase = true, idle
			return c.settle(err)
		},
	}
	err := stepper.StepScaled(scaled)
	if r.Scaled = nil; err != nil {
		return err
	}
	c.phase = stepped
	r.After(func(err error) error {
		if err == nil && !concluded { // the optimizer has no gradients
			c.phase = idle
			err = c.settle(c.err())
		} else {
			err = nil // the replay already returns the error of the launch
		}
		concluded = false
		return err
	})
	return nil
}

// captureUpdate reports whether a step is being captured. If so, it makes each replay call Update.
func (s *Scaler) captureUpdate() bool {
	var r *capture.Step
	for _, c := range s.checks {
		if c.capturing != nil {
			r, c.phase = c.capturing, idle
		}
	}
	if r == nil {
		return false
	}
	r.After(func(err error) error {
		if err == nil {
			s.Update()
		}
		return nil
	})
	return true
}
