package nn

// ModeSetter is a [Model] that computes otherwise in training than in evaluation, or
// holds others that may. Models begin in training mode.
type ModeSetter interface {
	Model
	// SetTraining sets the mode of the model and of all that it holds: training, or
	// evaluation.
	SetTraining(on bool)
}

// Train puts m and all that it holds into training mode, in which dropout drops and
// batch normalisation goes by the batch. Models begin in it.
func Train(m Model) { setTraining(m, true) }

// Eval puts m and all that it holds into evaluation mode. Gradients are computed as
// ever: an evaluation that needs none runs within autograd.NoGrad.
func Eval(m Model) { setTraining(m, false) }

func setTraining(m Model, on bool) {
	if s, ok := m.(ModeSetter); ok {
		s.SetTraining(on)
	}
}

// mode is the mode of a layer that embeds it. The zero mode is training.
type mode struct{ evaluates bool }

// SetTraining sets the mode: training, or evaluation.
func (m *mode) SetTraining(on bool) { m.evaluates = !on }

// Training tells whether the mode is training.
func (m *mode) Training() bool { return !m.evaluates }
