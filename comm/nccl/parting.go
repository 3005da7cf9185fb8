//go:build cgo && linux

package nccl

import (
	"context"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/device"
)

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
// but together. Then all do: whoever told it together had told nobody another
// word before, and told the rest the same at that moment.
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

// tellWord tells a peer this rank's word, while ctx lasts. That it cannot means
// that the channel is broken.
func (c *control) tellWord(ctx context.Context, peer int, how parting) error {
	collectives, sends, _ := c.progress.with(peer)
	task, err := c.net.Start(wordCall(backend.Send, peer, []int64{int64(how), int64(collectives), int64(sends)}))
	if err == nil {
		err = task.Sync(ctx)
	}
	if err != nil && ctx.Err() == nil {
		c.cancel(err)
	}
	return err
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
			c.tellWord(c.ctx, peer, stays)
		}
		return
	}
}

// farewell tells the peers that this rank leaves in good order, and waits for
// their words.
func (c *control) farewell(ctx context.Context) error {
	ctx, stop := backend.Bound(ctx, c.ctx)
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

// barrier waits, after a farewell of all together, until all have come here.
func (c *control) barrier() error {
	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()
	task, err := c.net.Start(&backend.Call{Kind: backend.Barrier})
	if err != nil {
		return err
	}
	return task.Sync(ctx)
}
