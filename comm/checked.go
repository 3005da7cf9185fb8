package comm

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/store"
)

// checked is a backend whose collectives run only when all ranks have called
// the same: Start waits for all ranks and compares their calls, over a group of
// host memory beside the backend. Send, Recv, and what a Group holds are not
// compared.
type checked struct {
	backend.Backend
	net        *host.Group
	opts       *host.Options
	rank, size int
	seq        uint64 // of the last comparison; Start is called by one goroutine at a time
}

// check puts a backend's ranks, which all call it, under comparison.
func check(ctx context.Context, be backend.Backend, cfg backend.Config, opts *host.Options) (backend.Backend, error) {
	cfg.Store, cfg.Device = store.Prefix(cfg.Store, "calls"), nil
	net, err := host.New(ctx, cfg, opts)
	if err != nil {
		be.Close(ctx)
		return nil, fmt.Errorf("a network to compare calls over: %w", err)
	}
	return &checked{Backend: be, net: net, opts: opts, rank: cfg.Rank, size: cfg.Size}, nil
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
	const words = 6
	own := []int64{int64(mine.Seq), int64(mine.Kind), int64(mine.Op), int64(mine.DType), int64(mine.Count), int64(mine.Root)}
	all := make([]int64, words*c.size)
	task, err := c.net.Start(&backend.Call{
		Seq: c.seq, Kind: backend.AllGather, Src: device.HostTensor(own, device.Int64), Dst: device.HostTensor(all, device.Int64),
	})
	if err == nil {
		err = task.Sync(context.Background()) // the watchdog knows the call: it aborts what takes too long
	}
	if err != nil {
		var call *backend.CallError // this network's own calls are of no interest
		if errors.As(err, &call) && call.Call.Kind == backend.AllGather && call.Call.Seq == c.seq {
			return call.Err
		}
		return err
	}
	calls := make([]backend.Fingerprint, c.size)
	differ := &backend.MismatchError{Rank: c.rank, Peer: c.rank, Mine: mine, All: calls}
	for r := range calls {
		w := all[r*words:]
		calls[r] = backend.Fingerprint{
			Seq: uint64(w[0]), Kind: backend.Kind(w[1]), Op: backend.ReduceOp(w[2]), DType: device.DType(w[3]), Count: int(w[4]), Root: int(w[5]),
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
	return check(ctx, be, cfg, c.opts)
}

// Abort breaks the group, and ends a comparison under way.
func (c *checked) Abort(cause error) {
	c.Backend.Abort(cause)
	c.net.Abort(cause)
}

// Close ends both.
func (c *checked) Close(ctx context.Context) error {
	return errors.Join(c.Backend.Close(ctx), c.net.Close(ctx))
}
