package ddp

import "github.com/goddp/goddp/internal/capture"

// beginCaptured is called when a backward pass of a captured step begins: see [autograd.Capture].
func (m *Model) beginCaptured(r *capture.Step) {
	switch {
	case m.replicas.every != 0:
		r.Refuse("Options.CheckReplicas is set")
	case m.times != nil:
		r.Refuse("Options.Stats is set")
	}
	capture.Undo(r, &m.passState)
	noSync := m.noSync && !m.isNoSyncCaptured // whether the caller of the replay is within NoSync
	r.Require(func() bool { return m.noSync == noSync })
	r.Before(func() error {
		m.passes++
		m.replicas.begin(m.passes)
		return nil
	})
}
