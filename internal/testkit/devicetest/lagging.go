package devicetest

import (
	"context"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
)

// Lagging wraps d, which runs its work inline, so that it behaves as a GPU does for the host. An
// event is known to be reached only after the host has waited for it, or for a later event of its
// stream, and an event made by Mark has no time.
func Lagging(d device.Device) device.Device {
	return &lagging{Device: d, compute: &lagStream{Stream: d.Compute()}}
}

type lagging struct {
	device.Device
	compute *lagStream
}

func (l *lagging) Compute() device.Stream { return l.compute }

func (l *lagging) NewStream(urgent bool) (device.Stream, error) {
	s, err := l.Device.NewStream(urgent)
	return &lagStream{Stream: s}, err
}

type lagStream struct {
	device.Stream
	mu          sync.Mutex
	made, known int // the number of events, and the last one that is known to be reached
}

func (s *lagStream) Record() device.Event { return s.event(s.Stream.Record(), true) }
func (s *lagStream) Mark() device.Event   { return s.event(s.Stream.Mark(), false) }

func (s *lagStream) Sync(ctx context.Context) error { return s.Mark().Sync(ctx) }

func (s *lagStream) event(e device.Event, timed bool) device.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return &lagEvent{Event: e, s: s, at: s.made, timed: timed}
}

type lagEvent struct {
	device.Event
	s     *lagStream
	at    int
	timed bool
}

func (e *lagEvent) Done() (bool, error) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return e.at <= e.s.known, nil
}

func (e *lagEvent) Sync(ctx context.Context) error {
	if err := e.Event.Sync(ctx); err != nil {
		return err
	}
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.s.known = max(e.s.known, e.at)
	return nil
}

func (e *lagEvent) Time() time.Time {
	if done, _ := e.Done(); !done || !e.timed {
		return time.Time{}
	}
	return e.Event.Time()
}
