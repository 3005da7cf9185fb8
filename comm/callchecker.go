package comm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// checked is a backend whose collectives run only when all ranks have called
// the same: Start waits for all ranks and compares their calls, by way of the coordinator.
// Send, Recv, and what a Group holds are not compared.
type callChecker struct {
	backend.Backend
	control *coordinator.Group
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	seq     uint64 // of the last comparison; Start is called by one goroutine at a time
}

// check puts a backend's ranks, which all call it, under comparison.
func newCallChecker(be backend.Backend, cfg backend.Config) backend.Backend {
	c := &callChecker{Backend: be, control: cfg.Control}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// Start compares, and starts.
func (c *callChecker) Start(call *backend.Call) (backend.Task, error) {
	if call.Kind != backend.Send && call.Kind != backend.Recv {
		if err := c.compare(call.Fingerprint().InJob(c.control.Members)); err != nil {
			return nil, err
		}
	}
	return c.Backend.Start(call)
}

// compare returns a [*backend.MismatchError] on every rank when their calls
// differ. It waits for all ranks, the group's failure, or Close.
func (c *callChecker) compare(mine backend.Fingerprint) error {
	c.seq++
	if mine.Kind == backend.Group {
		mine.Count = 0 // what ranks send and receive may differ
	}
	value, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	values, err := c.control.Gather(c.ctx, fmt.Sprintf("call/%d", c.seq), value)
	if f := c.control.Failure(); err != nil && f != nil { // also where this takes too long, by the watchdog
		return backend.Cause(f)
	}
	if err != nil {
		return err
	}
	rank := c.control.Rank()
	differ := &backend.MismatchError{Rank: rank, Peer: rank, Mine: mine, All: make([]backend.Fingerprint, len(values)), Ranks: c.control.Members}
	for i, r := range c.control.Members {
		if err := json.Unmarshal(values[i], &differ.All[i]); err != nil {
			return fmt.Errorf("call of rank %d: %w", r, err)
		}
		if differ.All[i] != mine && differ.Peer == rank {
			differ.Peer, differ.Theirs = r, differ.All[i]
		}
	}
	if differ.Peer == rank {
		return nil
	}
	return differ
}

// Close ends the group, and a comparison under way.
func (c *callChecker) Close(ctx context.Context) error {
	defer c.cancel(backend.ErrClosed)
	return c.Backend.Close(ctx)
}

// Split makes a group whose calls are compared as well.
func (c *callChecker) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	be, err := c.Backend.Split(ctx, cfg, members)
	if err != nil {
		return nil, err
	}
	return newCallChecker(be, cfg), nil
}
