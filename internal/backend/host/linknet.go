package host

import (
	"context"
	"io"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// linkNet is the network of ranks that are processes: a link to every peer,
// and collectives at a board where all of them share memory, else over the
// links.
type linkNet struct {
	group *Group
	links []*link // by rank; nil for this rank
	wire  wire
	desk  sharedMemory // this rank's; nil: it cannot share memory
	board sharedMemory // the same where all ranks share memory, else nil
	table table
}

// deskState is what a desk says of its rank.
type deskState uint32

const (
	_         deskState = iota
	rankBroke           // its group broke: what it shares may change at any time
	rankLeft            // it closed its group in good order
)

// sharedMemory is the board of processes of one host.
type sharedMemory interface {
	board
	// descriptor is this rank's desk, for the peers to map.
	descriptor() (fd, size int)
	// say changes what this rank's desk says of the rank.
	say(s deskState)
	// adopt takes the links, all with the peers' desks.
	adopt(links []*link)
	missing() []int
	alloc(size int) (device.Buffer, error)
}

var _ network = (*linkNet)(nil)

func (n *linkNet) run(p *plan) error {
	if n.board != nil {
		return n.table.run(p)
	}
	return n.wire.run(p)
}

func (n *linkNet) missing() []int {
	if n.board != nil {
		return n.board.missing()
	}
	return n.wire.missing()
}

func (n *linkNet) alloc(size int) (device.Buffer, error) {
	if n.board != nil {
		return n.board.alloc(size)
	}
	return allocGo(size)
}

// send writes a card, for the fingerprint, and the data. It is done when the
// operating system has both.
func (n *linkNet) send(c *backend.Call, data []byte) error {
	l := n.links[c.Root]
	head := make([]byte, cardSize)
	(&card{print: c.Fingerprint(), given: len(data)}).encode(head)
	for _, b := range [][]byte{head, data} {
		if _, err := l.conns[laneP2P].Write(b); err != nil {
			return n.group.lost(n.group.ctx, c.Root, err)
		}
	}
	return nil
}

func (n *linkNet) recv(c *backend.Call, data []byte) error {
	l := n.links[c.Root]
	head := make([]byte, cardSize)
	if _, err := io.ReadFull(l.conns[laneP2P], head); err != nil {
		return n.group.lost(n.group.ctx, c.Root, err)
	}
	sent, _ := decodeCard(head)
	if err := n.group.matchSend(c, sent.print); err != nil {
		return err
	}
	if _, err := io.ReadFull(l.conns[laneP2P], data); err != nil {
		return n.group.lost(n.group.ctx, c.Root, err)
	}
	return context.Cause(n.group.ctx)
}

func (n *linkNet) breaks() {
	if n.desk != nil {
		n.desk.say(rankBroke)
	}
}

func (n *linkNet) wake() {
	n.wire.interrupt()
	for _, l := range n.links {
		if l != nil {
			l.interrupt(laneP2P)
		}
	}
}

func (n *linkNet) close(orderly bool) {
	if orderly && n.desk != nil {
		n.desk.say(rankLeft)
	}
	for _, l := range n.links {
		if l == nil {
			continue
		}
		l.close()
		if l.desk != nil {
			<-l.gone
		}
	}
}
