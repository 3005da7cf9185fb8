package comm

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// callChecker wraps a backend. Start waits until all ranks have started a call, compares the calls
// through the coordinator, and runs them only if they are equal. Send, Recv and the calls within a
// Coalesce are not compared.
type callChecker struct {
	backend.Backend
	control *coordinator.Group
	ctx     context.Context // ends when Close is called
	cancel  context.CancelCauseFunc
	seq     uint64 // number of the latest comparison; Start needs no lock for it, because a group calls Start serially
}

// newCallChecker wraps a backend. All ranks of the group must wrap their backends.
func newCallChecker(ctx context.Context, be backend.Backend, cfg backend.Config) backend.Backend {
	c := &callChecker{Backend: be, control: cfg.Control}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return c
}

// Start compares the calls of all ranks, then starts this rank's call.
func (c *callChecker) Start(call *backend.Call) (backend.Task, error) {
	if call.Kind != backend.Send && call.Kind != backend.Recv {
		if err := c.compare(call.Fingerprint().InJob(c.control.Members)); err != nil {
			return nil, err
		}
	}
	return c.Backend.Start(call)
}

// compare returns a [*failure.MismatchError] on every rank if the ranks' calls differ. It
// returns when all ranks have called it, the group has failed, or Close was called.
func (c *callChecker) compare(mine backend.Fingerprint) error {
	c.seq++
	if mine.Kind == backend.Group {
		mine.Count = 0 // within a Coalesce, ranks may send and receive different numbers of elements
	}
	call := mine.String()
	values, err := c.control.Gather(c.ctx, fmt.Sprintf("call/%d", c.seq), []byte(call))
	if f := c.control.Failure(); err != nil && f != nil { // the group has failed, for example because a call's deadline passed
		return backend.Cause(f)
	}
	if err != nil {
		return err
	}
	rank := c.control.Rank()
	differ := &failure.MismatchError{Rank: rank, Peer: rank, Mine: call, All: make([]string, len(values)), Ranks: c.control.Members}
	for i, r := range c.control.Members {
		differ.All[i] = string(values[i])
		if differ.All[i] != call && differ.Peer == rank {
			differ.Peer, differ.Theirs = r, differ.All[i]
		}
	}
	if differ.Peer == rank {
		return nil
	}
	return differ
}

// Close closes the backend and ends a comparison in progress.
func (c *callChecker) Close(ctx context.Context) error {
	defer c.cancel(failure.ErrClosed)
	return c.Backend.Close(ctx)
}

// Split creates the backend of a subgroup and wraps it in a callChecker as well.
func (c *callChecker) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	be, err := c.Backend.Split(ctx, cfg, members)
	if err != nil {
		return nil, err
	}
	return newCallChecker(ctx, be, cfg), nil
}
