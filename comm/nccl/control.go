//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
)

// control is the channel between the ranks beside NCCL: a group of host
// memory, which notices dead peers and spreads the cause of a failure by
// itself. This rank always has a Recv pending from every peer. It ends with the
// peer's word on how the two part, or with the reason why the control channel
// broke. The channel's collectives are free for what ranks may have to agree on.
type control struct {
	net        *host.Group
	rank, size int
	progress   progress

	ctx    context.Context // its cause says why the channel broke
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // of the Recvs

	leaving chan struct{} // closed when this rank leaves

	mu    sync.Mutex
	told  map[int]bool      // peers that have this rank's word
	gone  map[int]time.Time // when the peers that left did
	heard int               // peers whose word has come
	apart bool              // not every rank's word is together
	all   chan struct{}     // closed when the word of all has come
}

func openControl(ctx context.Context, cfg backend.Config, o Options, p progress) (*control, error) {
	c := &control{
		rank: cfg.Rank, size: cfg.Size, progress: p, leaving: make(chan struct{}),
		told: map[int]bool{}, gone: map[int]time.Time{}, all: make(chan struct{}),
	}
	cfg.Device = nil
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

// await waits for a peer's word, or the channel to break.
func (c *control) await(peer int) {
	got := make([]int64, 3)
	task, err := c.net.Start(wordCall(backend.Recv, peer, got))
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
	w := word{how: parting(got[0]), collectives: int(got[1]), sends: int(got[2])}
	c.hear(peer, w.how)
	if w.how != stays {
		c.letGo(peer, w)
	}
}

// left is when a peer left, of those that did.
func (c *control) left(peer int) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.gone[peer]
	return at, ok
}

// tell tells the peers why this rank's group broke, unless they told it.
func (c *control) tell(cause error) { c.net.Abort(cause) }

// close ends the channel: in good order after the word of all.
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
