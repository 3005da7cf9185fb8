package nn

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
)

// Train sets m and all models within it to training mode, in which dropout is active and batch
// normalization uses the moments of the batch. Models start in training mode. restore restores each
// model's previous mode.
func Train(m Model) (restore func()) { return setMode(m, true) }

// Eval sets m and all models within it to evaluation mode. restore restores each model's previous mode. So a
// layer that was already in evaluation mode stays in it:
//
//	defer nn.Eval(net)()
//
// Operations are still recorded for gradients; use [autograd.NoGrad] to avoid that.
func Eval(m Model) (restore func()) { return setMode(m, false) }

func setMode(m Model, on bool) (restore func()) {
	type before struct {
		model Model
		on    bool
	}
	var all []before
	for part := range Parts(m) {
		p, ok := part.(interface{ Training() bool })
		all = append(all, before{part, !ok || p.Training()})
	}
	setTraining(m, on)
	return func() {
		for _, b := range all { // a model comes before the models within it, because its SetTraining sets their modes too
			setTraining(b.model, b.on)
		}
	}
}

func setTraining(m Model, on bool) {
	if s, ok := m.(interface{ SetTraining(on bool) }); ok {
		s.SetTraining(on)
	}
}

// mode is the mode of a layer that embeds it. The zero mode is training.
type mode struct{ evaluates bool }

// SetTraining sets the mode: training or evaluation.
func (m *mode) SetTraining(on bool) { m.evaluates = !on }

// Training reports whether the mode is training.
func (m *mode) Training() bool { return !m.evaluates }

// trainingOn is Training for a layer that computes on dev. If a step is being captured, trainingOn adds a guard, so
// that the step is replayed only in the same mode.
func (m *mode) trainingOn(dev device.Device) bool {
	on := m.Training()
	if r := capture.Of(dev); r != nil {
		r.Require(func() bool { return m.Training() == on })
	}
	return on
}
