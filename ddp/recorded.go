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
	passes, replicaPasses := m.passes, m.replicas.passes
	r.AtEnd(func() { m.passes, m.replicas.passes, m.sent = passes, replicaPasses, nil })
	noSync := m.noSync && !m.isNoSyncRecorded // of the replay's caller
	r.Require(func() bool { return m.noSync == noSync && !m.isJoining })
	r.Before(func() error {
		m.passes++
		m.replicas.begin()
		return nil
	})
}
