//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
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

// progress is how far this rank has come with what it does with its peers.
type progress interface {
	// with is how many collectives it has started, how many Sends to the peer,
	// and how many Recvs from it.
	with(peer int) (collectives, sends, recvs int)
	// idle tells whether it has done all that it started.
	idle() bool
}

// word is what two ranks tell each other once, each the other, on how they
// part: the first when it leaves, the other when it leaves too, or when it has
// seen that it does not.
//
// A rank ends its communicators with the others if it told and heard nothing
// but together. Then so do all: who told this rank together had told nobody
// else's word before, and told all others together at the same time.
type word struct {
	how parting
	// What the rank that leaves has done, and the other has to do yet.
	collectives, sends int
}

// parting is how a rank leaves.
type parting int64

const (
	together parting = iota // it leaves, as all seem to
	apart                   // it leaves, when another has left alone
	stays                   // it does not leave: the peer is to leave alone
)

// stayGrace is how long a rank keeps a peer that leaves waiting, in case that
// it leaves too. From then on it looks every stayTick whether it has done all
// that it did with the peer.
const (
	stayGrace = 2 * time.Second
	stayTick  = 10 * time.Millisecond
)

func openControl(ctx context.Context, cfg backend.Config, o Options, p progress) (*control, error) {
	c := &control{
		rank: cfg.Rank, size: cfg.Size, progress: p, leaving: make(chan struct{}),
		told: map[int]bool{}, gone: map[int]time.Time{}, all: make(chan struct{}),
	}
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

// wordCall is a Send or Recv of a word.
func wordCall(kind backend.Kind, peer int, w []int64) *backend.Call {
	c := &backend.Call{Kind: kind, Root: peer, Name: "farewell"}
	if t := device.HostTensor(w, device.Int64); kind == backend.Send {
		c.Src = t
	} else {
		c.Dst = t
	}
	return c
}

// tellWord tells a peer this rank's word.
func (c *control) tellWord(ctx context.Context, peer int, how parting) error {
	collectives, sends, _ := c.progress.with(peer)
	task, err := c.net.Start(wordCall(backend.Send, peer, []int64{int64(how), int64(collectives), int64(sends)}))
	if err != nil {
		return err
	}
	return task.Sync(ctx)
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

func (c *control) hear(peer int, how parting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if how != stays {
		c.gone[peer] = time.Now()
	}
	c.apart = c.apart || how != together
	if c.heard++; c.heard == c.size-1 {
		close(c.all)
	}
}

// letGo tells a peer that leaves to do so alone, unless this rank leaves within
// stayGrace. It lets nobody go before it has done all that the peer has: the
// end of the peer's communicators may take data along that are on their way
// here, and memory that a call here uses.
func (c *control) letGo(peer int, w word) {
	since := time.Now()
	ticker := time.NewTicker(stayTick)
	defer ticker.Stop()
	for {
		select {
		case <-c.leaving:
			return // farewell has a word for it
		case <-c.ctx.Done():
			return
		case now := <-ticker.C:
			if now.Sub(since) < stayGrace {
				continue
			}
		}
		collectives, _, recvs := c.progress.with(peer)
		if collectives < w.collectives || recvs < w.sends || !c.progress.idle() {
			continue
		}
		c.mu.Lock()
		first := !c.told[peer]
		if first {
			c.told[peer], c.apart = true, true
		}
		c.mu.Unlock()
		if first {
			if err := c.tellWord(c.ctx, peer, stays); err != nil {
				c.cancel(err)
			}
		}
		return
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
// their words.
func (c *control) farewell(ctx context.Context) error {
	ctx, stop := c.bound(ctx)
	defer stop()
	c.mu.Lock()
	how := together
	if c.apart {
		how = apart
	}
	var peers []int
	for peer := range c.peers {
		if !c.told[peer] {
			c.told[peer] = true
			peers = append(peers, peer)
		}
	}
	c.mu.Unlock()
	close(c.leaving)
	for _, peer := range peers {
		if err := c.tellWord(ctx, peer, how); err != nil {
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

// alone tells, after the farewell, whether this rank's communicators end
// without those of others.
func (c *control) alone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apart
}

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
