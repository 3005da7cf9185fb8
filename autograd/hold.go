package autograd

import (
	"github.com/goddp/goddp/device"
)

// hold is a read of variables by a stream other than Compute.
type hold struct {
	vars  []*Variable // kept reachable until Compute has waited for the read
	until device.Event
}

// HoldWrites announces that a stream of dev beside Compute reads vars until an event. Later in-place
// writes to vars run after that event: [Variable.BumpVersion] and [Variable.Free] of one of vars, and
// the steps of package optim's optimizers, call [AwaitReaders] first. A program that writes one of
// vars itself calls BumpVersion before it enqueues the write. Only the goroutine that uses dev may
// call HoldWrites.
func HoldWrites(dev device.Device, vars []*Variable, until device.Event) {
	s := stateOf(dev)
	if r := s.captures; r != nil {
		r.Refuse("a stream beside Compute reads variables")
	}
	for _, v := range vars {
		v.mem.held = true
	}
	s.holds = append(s.holds, hold{vars, until})
}

// AwaitReaders makes dev's compute stream wait for the events of all calls of [HoldWrites] since the
// last AwaitReaders. The host waits only if a device's streams run work inline. Only the goroutine that
// uses dev may call AwaitReaders. The error is the device's.
func AwaitReaders(dev device.Device) error { return stateOf(dev).awaitReaders() }

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
