package ddp

import "github.com/goddp/goddp/internal/capture"

// beginRecorded is called when a backward pass of a recorded step begins: see [autograd.Capture].
func (m *Model) beginRecorded(r *capture.Recording, reduces bool) {
	switch {
	case len(m.buffers) > 0:
		r.Refuse("ddp sends the model's buffers in each pass; Options.LocalBuffers turns that off")
	case m.replicas.every != 0:
		r.Refuse("Options.CheckReplicas is set")
	case m.times != nil:
		r.Refuse("Options.Stats is set")
	}
	passes, replicaPasses := m.passes, m.replicas.passes
	r.AtEnd(func() { m.passes, m.replicas.passes = passes, replicaPasses })
	r.Require(func() bool { return !m.noSync == reduces && !m.isJoining })
	r.Before(func() error {
		m.checkOwner()
		m.passes++
		m.replicas.begin()
		return nil
	})
}
