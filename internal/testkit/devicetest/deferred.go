package devicetest

import (
	"context"
	"sync"

	"github.com/goddp/goddp/device"
)

// Deferred wraps a device that runs its work inline. On streams other than Compute it defers copies
// as long as possible, until Compute waits for an event behind them. Only then are these events
// reached. Run runs the copies that Compute did not wait for.
type Deferred struct {
	device.Device
	compute deferredCompute
	mu      sync.Mutex
	streams []*deferredStream
}

// Defer returns d with deferred copies.
func Defer(d device.Device) *Deferred {
	return &Deferred{Device: d, compute: deferredCompute{d.Compute()}}
}

// Compute returns the stream that runs its work inline.
func (d *Deferred) Compute() device.Stream { return &d.compute }

// NewStream makes a stream that defers copies.
func (d *Deferred) NewStream(urgent bool) (device.Stream, error) {
	inner, err := d.Device.NewStream(urgent)
	s := &deferredStream{Stream: inner, until: make(chan struct{})}
	close(s.until)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams = append(d.streams, s)
	return s, err
}

// Copy defers the copy, unless s is Compute.
func (d *Deferred) Copy(s device.Stream, dst, src device.Buffer) error {
	late, ok := s.(*deferredStream)
	if !ok {
		return d.Device.Copy(s, dst, src)
	}
	late.mu.Lock()
	defer late.mu.Unlock()
	if len(late.pending) == 0 {
		late.until = make(chan struct{})
	}
	late.pending = append(late.pending, func() error { return d.Device.Copy(late.Stream, dst, src) })
	return nil
}

// Run runs the deferred copies of all streams and returns how many there were.
func (d *Deferred) Run() (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.streams {
		k, failed := s.run()
		if n += k; failed != nil {
			err = failed
		}
	}
	return n, err
}

type deferredCompute struct{ device.Stream }

func (c *deferredCompute) WaitFor(e device.Event) error {
	if late, ok := e.(*deferredEvent); ok {
		_, err := late.s.run()
		return err
	}
	return c.Stream.WaitFor(e)
}

type deferredStream struct {
	device.Stream
	mu      sync.Mutex
	pending []func() error
	until   chan struct{} // closed when pending has run
}

func (s *deferredStream) run() (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return 0, nil
	}
	for _, f := range s.pending {
		if err == nil {
			err = f()
		}
	}
	n, s.pending = len(s.pending), nil
	close(s.until)
	return n, err
}

func (s *deferredStream) Record() device.Event { return s.event(s.Stream.Record()) }
func (s *deferredStream) Mark() device.Event   { return s.event(s.Stream.Mark()) }

func (s *deferredStream) Sync(ctx context.Context) error { return s.Mark().Sync(ctx) }

func (s *deferredStream) event(e device.Event) device.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &deferredEvent{e, s, s.until}
}

type deferredEvent struct {
	device.Event
	s     *deferredStream
	until chan struct{}
}

func (e *deferredEvent) Done() (bool, error) {
	select {
	case <-e.until:
		return true, nil
	default:
		return false, nil
	}
}

func (e *deferredEvent) Sync(ctx context.Context) error {
	select {
	case <-e.until:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
