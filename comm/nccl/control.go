//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/store"
)

// control is the channel between the ranks beside NCCL: a group of host
// memory, which notices dead peers and spreads the cause of a failure by
// itself. This rank always has a Recv pending from every peer. It ends with the
// peer's farewell when that closes its group, or with the reason why the
// control channel broke. The channel's collectives are free for what ranks may
// have to agree on.
type control struct {
	net        *host.Group
	rank, size int

	ctx    context.Context // its cause says why the channel broke
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // of the Recvs

	mu   sync.Mutex
	gone map[int]time.Time // when the peers that left did
	all  chan struct{}     // closed when all have
}

// forever is the timeout of a Recv that waits for a farewell.
const forever = time.Duration(math.MaxInt64)

func openControl(ctx context.Context, cfg backend.Config, o Options) (*control, error) {
	c := &control{rank: cfg.Rank, size: cfg.Size, gone: map[int]time.Time{}, all: make(chan struct{})}
	cfg.Store, cfg.Device = store.Prefix(cfg.Store, keyControl), nil
	var err error
	if c.net, err = host.New(ctx, cfg, &o.Control); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if cfg.Size == 1 {
		close(c.all)
	}
	for peer := range c.peers {
		c.wg.Go(func() { c.await(peer) })
	}
	return c, nil
}

// peers iterates over the other ranks.
func (c *control) peers(yield func(int) bool) {
	for peer := range c.size {
		if peer != c.rank && !yield(peer) {
			return
		}
	}
}

// farewellCall is a Send or Recv of a farewell: one byte, of no meaning.
func farewellCall(kind backend.Kind, peer int) *backend.Call {
	c := &backend.Call{Kind: kind, Root: peer, Timeout: forever, Name: "farewell"}
	word := device.HostTensor([]byte{0}, device.Uint8)
	if kind == backend.Send {
		c.Src = word
	} else {
		c.Dst = word
	}
	return c
}

// await waits for a peer to leave, or the channel to break.
func (c *control) await(peer int) {
	task, err := c.net.Start(farewellCall(backend.Recv, peer))
	if err == nil {
		err = task.Sync(context.Background()) // the channel's end ends it
	}
	if err != nil {
		var call *backend.CallError // the Recv itself is of no interest
		if errors.As(err, &call) {
			err = call.Err
		}
		c.cancel(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[peer] = time.Now()
	if len(c.gone) == c.size-1 {
		close(c.all)
	}
}

// left is when a peer left, of those that did.
func (c *control) left(peer int) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.gone[peer]
	return at, ok
}

// bound is a context that ends with ctx or with the channel.
func (c *control) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// tell tells the peers why this rank's group broke, unless they told it.
func (c *control) tell(cause error) { c.net.Abort(cause) }

// farewell tells the peers that this rank leaves in good order, and waits for
// them to do the same.
func (c *control) farewell(ctx context.Context) error {
	ctx, stop := c.bound(ctx)
	defer stop()
	for peer := range c.peers {
		task, err := c.net.Start(farewellCall(backend.Send, peer))
		if err == nil {
			err = task.Sync(ctx)
		}
		if err != nil {
			return causeOf(ctx, err)
		}
	}
	select {
	case <-c.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close ends the channel: in good order after the farewell of all.
func (c *control) close() {
	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()
	select {
	case <-c.all:
	default:
		c.net.Abort(backend.ErrClosed) // ends the Recvs
	}
	c.net.Close(ctx)
	c.wg.Wait()
	c.cancel(backend.ErrClosed)
}
