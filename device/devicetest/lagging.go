package devicetest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/device"
)

// Lagging is d, which runs its work inline, as a host sees a GPU: no event is
// known to be reached before somebody has waited for it, and a mark has no time.
func Lagging(d device.Device) device.Device {
	return &lagging{Device: d, compute: &lagStream{d.Compute()}}
}

type lagging struct {
	device.Device
	compute *lagStream
}

func (l *lagging) Compute() device.Stream { return l.compute }

func (l *lagging) NewStream(urgent bool) (device.Stream, error) {
	s, err := l.Device.NewStream(urgent)
	return &lagStream{s}, err
}

type lagStream struct{ device.Stream }

func (s *lagStream) Record() device.Event { return &lagEvent{Event: s.Stream.Record(), timed: true} }
func (s *lagStream) Mark() device.Event   { return &lagEvent{Event: s.Stream.Mark()} }

type lagEvent struct {
	device.Event
	timed bool
	seen  atomic.Bool
}

func (e *lagEvent) Done() (bool, error) { return e.seen.Load(), nil }

func (e *lagEvent) Sync(ctx context.Context) error {
	if err := e.Event.Sync(ctx); err != nil {
		return err
	}
	e.seen.Store(true)
	return nil
}

func (e *lagEvent) Time() time.Time {
	if !e.timed || !e.seen.Load() {
		return time.Time{}
	}
	return e.Event.Time()
}
