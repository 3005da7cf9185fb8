package comm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// checked is a backend whose collectives run only when all ranks have called
// the same: Start waits for all ranks and compares their calls, by way of the coordinator.
// Send, Recv, and what a Group holds are not compared.
type checked struct {
	backend.Backend
	control *coordinator.Group
	rank    int
	seq     uint64 // of the last comparison; Start is called by one goroutine at a time
	life    context.Context
	end     context.CancelCauseFunc
}

// check puts a backend's ranks, which all call it, under comparison.
func check(be backend.Backend, cfg backend.Config) backend.Backend {
	c := &checked{Backend: be, control: cfg.Control, rank: cfg.Rank}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Start compares, and starts.
func (c *checked) Start(call *backend.Call) (backend.Task, error) {
	if call.Kind != backend.Send && call.Kind != backend.Recv {
		if err := c.compare(call.Fingerprint()); err != nil {
			c.Backend.Abort(&backend.CallError{Rank: c.rank, Call: call.Fingerprint(), Name: call.Name, Err: err})
			return nil, err
		}
	}
	return c.Backend.Start(call)
}

// compare returns a [*backend.MismatchError] on every rank when their calls
// differ. It waits for all ranks, or an Abort.
func (c *checked) compare(mine backend.Fingerprint) error {
	c.seq++
	if mine.Kind == backend.Group {
		mine.Count = 0 // what ranks send and receive may differ
	}
	value, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	values, err := c.control.Gather(c.life, fmt.Sprintf("call/%d", c.seq), value)
	if err != nil { // the watchdog knows the call: it aborts what takes too long
		return err
	}
	calls := make([]backend.Fingerprint, len(values))
	differ := &backend.MismatchError{Rank: c.rank, Peer: c.rank, Mine: mine, All: calls}
	for r := range calls {
		if err := json.Unmarshal(values[r], &calls[r]); err != nil {
			return fmt.Errorf("call of rank %d: %w", r, err)
		}
		if calls[r] != mine && differ.Peer == c.rank {
			differ.Peer, differ.Theirs = r, calls[r]
		}
	}
	if differ.Peer == c.rank {
		return nil
	}
	return differ
}

// Split makes a group whose calls are compared as well.
func (c *checked) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	be, err := c.Backend.Split(ctx, cfg, members)
	if err != nil {
		return nil, err
	}
	return check(be, cfg), nil
}

// Abort breaks the group, and ends a comparison under way.
func (c *checked) Abort(cause error) {
	c.Backend.Abort(cause)
	c.end(cause)
}
