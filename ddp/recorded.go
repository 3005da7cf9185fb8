package ddp

import "github.com/goddp/goddp/internal/capture"

// beginRecorded is called when a backward pass of a recorded step begins: see [autograd.Capture].
func (m *Model) beginRecorded(r *capture.Recording) {
	switch {
	case m.replicas.every != 0:
		r.Refuse("Options.CheckReplicas is set")
	case m.times != nil:
		r.Refuse("Options.Stats is set")
	}
	capture.Undo(r, &m.passState)
	noSync := m.noSync && !m.isNoSyncRecorded // of the replay's caller
	r.Require(func() bool { return m.noSync == noSync })
	r.Before(func() error {
		m.passes++
		m.replicas.begin(m.passes)
		return nil
	})
}
