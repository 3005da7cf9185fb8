package backendtest

import (
	"context"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// Slow is a backend that starts the chosen calls a delay after their data is ready. Later calls wait for them.
type Slow struct {
	backend.Backend
	Delay   time.Duration
	Chooses func(*backend.Call) bool
}

func (s Slow) Start(c *backend.Call) (backend.Task, error) {
	if s.Chooses(c) {
		c.After = late{c.After, s.Delay}
	}
	return s.Backend.Start(c)
}

type late struct {
	device.Event
	delay time.Duration
}

func (l late) Done() (bool, error) { return false, nil }

func (l late) Sync(ctx context.Context) error {
	if err := l.Event.Sync(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(l.delay):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
