package cpu

import (
	"context"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// stream runs its work inline, so there is nothing to wait for. Its size is not zero, so that two streams
// have different addresses.
type stream struct{ _ byte }

func (s *stream) Record() device.Event         { return &event{time.Now()} }
func (s *stream) Mark() device.Event           { return s.Record() }
func (s *stream) WaitFor(e device.Event) error { return e.Sync(kernels.Unbounded) } // an event of this device is complete; for another event, its own device bounds the wait
func (s *stream) Sync(context.Context) error   { return nil }
func (s *stream) Close() error                 { return nil }

// event is complete from the start.
type event struct{ at time.Time }

func (e *event) Done() (bool, error)        { return true, nil }
func (e *event) Sync(context.Context) error { return nil }
func (e *event) Time() time.Time            { return e.at }
