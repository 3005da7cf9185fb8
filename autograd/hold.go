package autograd

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// hold is a read of variables by a stream other than Compute.
type hold struct {
	vars  []*Variable // kept reachable until Compute has waited for the read
	until device.Event
}

func init() {
	gradsink.HoldWrites = func(dev device.Device, variables []any, until device.Event) { stateOf(dev).hold(variables, until) }
	gradsink.AwaitReaders = func(dev device.Device) error { return stateOf(dev).awaitReaders() }
}

// hold implements gradsink.HoldWrites.
func (s *state) hold(variables []any, until device.Event) {
	if r := s.capturing; r != nil {
		r.Refuse("a stream other than Compute reads variables")
	}
	vars := make([]*Variable, len(variables))
	for i, v := range variables {
		vars[i] = v.(*Variable)
		vars[i].mem.held = true
	}
	s.holds = append(s.holds, hold{vars, until})
}

// awaitReaders implements gradsink.AwaitReaders.
func (s *state) awaitReaders() error {
	for _, h := range s.holds {
		if err := s.dev.Compute().WaitFor(h.until); err != nil {
			return err // the device failed, so enqueued work fails too
		}
		for _, v := range h.vars {
			v.mem.held = false
		}
	}
	s.holds = nil
	return nil
}
