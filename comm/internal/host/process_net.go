package host

import (
	"context"
	"io"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// processNet is the network of ranks that are processes. Every pair of ranks is connected.
// Collectives use shared memory if all ranks share it, else the connections. AllReduce uses both if
// the ranks of each host share memory.
type processNet struct {
	group     *Group
	peers     []*peerConn // by rank; nil for this rank
	overConns connCollectives
	shm       sharedMemory // this rank's shared memory; nil if it has none
	sharing   []int        // the ranks whose collectives use shm, including this one; nil if none
	inMemory  memCollectives
}

// rankStatus is the status that a rank publishes in its shared region.
type rankStatus uint32

const (
	_            rankStatus = iota
	statusBroken            // the group broke: the rank's shared memory may change at any time
	statusLeft              // the rank closed its group without a failure
)

// sharedMemory is the memoryGroup of processes on one host.
type sharedMemory interface {
	memoryGroup
	// announce sets the segments of the header's memory, and announces segments that the peers do
	// not know.
	announce(c *callHeader)
	// descriptor returns the file descriptor and size of this rank's shared region.
	descriptor() (fd, size int)
	// setStatus publishes this rank's status.
	setStatus(s rankStatus)
	// connect sets the ranks that share memory, including this one. peers are the connections of
	// the group; those to these ranks have regions.
	connect(ranks []int, peers []*peerConn)
	// waitingFor returns the ranks of the group that this rank waits for at a barrier.
	waitingFor() []int
	alloc(size int) (device.Buffer, error)
}

var _ network = (*processNet)(nil)

func (n *processNet) run(p *plan) error {
	if len(n.sharing) == len(n.peers) {
		return n.inMemory.run(p)
	}
	return n.overConns.run(p)
}

func (n *processNet) waitingFor() []int {
	ranks := n.overConns.waitingFor()
	if n.sharing != nil {
		ranks = append(ranks, n.shm.waitingFor()...)
	}
	return ranks
}

func (n *processNet) alloc(size int) (device.Buffer, error) {
	if n.sharing != nil {
		return n.shm.alloc(size)
	}
	return allocGo(size)
}

// send writes a header, which holds the fingerprint, and the data. It returns when the operating
// system has buffered both.
func (n *processNet) send(c *backend.Call, data []byte) error {
	pc := n.peers[c.Root]
	head := make([]byte, headerSize)
	(&callHeader{fingerprint: c.Fingerprint(), srcBytes: len(data)}).encode(head)
	for _, b := range [][]byte{head, data} {
		if _, err := pc.conns[p2pConn].Write(b); err != nil {
			return n.group.peerLost(n.group.ctx, c.Root, err)
		}
	}
	return nil
}

func (n *processNet) recv(c *backend.Call, data []byte) error {
	pc := n.peers[c.Root]
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(pc.conns[p2pConn], head); err != nil {
		return n.group.peerLost(n.group.ctx, c.Root, err)
	}
	sent, _ := decodeHeader(head)
	if err := n.group.matchSend(c, sent.fingerprint); err != nil {
		return err
	}
	if _, err := io.ReadFull(pc.conns[p2pConn], data); err != nil {
		return n.group.peerLost(n.group.ctx, c.Root, err)
	}
	return context.Cause(n.group.ctx)
}

func (n *processNet) markBroken() {
	if n.shm != nil {
		n.shm.setStatus(statusBroken)
	}
}

func (n *processNet) wake() {
	n.overConns.interrupt()
	for _, pc := range n.peers {
		if pc != nil {
			pc.interrupt(p2pConn)
		}
	}
}

func (n *processNet) close(orderly bool) {
	if orderly && n.shm != nil {
		n.shm.setStatus(statusLeft)
	}
	for _, pc := range n.peers {
		if pc == nil {
			continue
		}
		pc.close()
		if pc.region != nil {
			<-pc.listenDone
		}
	}
}
