package autograd

import (
	"context"

	"github.com/goddp/goddp/device"
)

// hold is a read of variables by another stream than Compute.
type hold struct {
	vars  []*Variable // kept from the collector until Compute waits for the end
	until device.Event
}

// HoldWrites says that a stream of dev beside Compute reads vars until an event. Later in-place
// writes to vars run behind that event: [Variable.BumpVersion] and [Variable.Free] of one of
// vars, and the steps of package optim's optimizers, call [AwaitReaders] first. A program that
// writes one of vars by itself calls BumpVersion before it enqueues the write. The goroutine
// that drives dev calls HoldWrites.
func HoldWrites(dev device.Device, vars []*Variable, until device.Event) {
	s := stateOf(dev)
	for _, v := range vars {
		v.mem.held = true
	}
	s.holds = append(s.holds, hold{vars, until})
}

// AwaitReaders makes dev's compute stream wait for the events of all calls of [HoldWrites] since
// the last AwaitReaders. The host waits only where a device's streams run their work inline.
// The goroutine that drives dev calls AwaitReaders. The error is the device's.
func AwaitReaders(dev device.Device) error { return stateOf(dev).awaitReaders() }

func (s *state) awaitReaders() error {
	for _, h := range s.holds {
		if err := s.dev.Compute().WaitFor(context.Background(), h.until); err != nil {
			return err // the device's: what is enqueued fails too
		}
		for _, v := range h.vars {
			v.mem.held = false
		}
	}
	s.holds = nil
	return nil
}
