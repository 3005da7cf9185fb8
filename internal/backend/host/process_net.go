package host

import (
	"context"
	"io"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// processNet is the network of ranks that are processes. Every two ranks are connected. Collectives
// use shared memory if all ranks share it, else the connections.
type processNet struct {
	group     *Group
	peers     []*peerConn // by rank; nil for this rank
	overConns connCollectives
	shm       sharedMemory // this rank's shared memory; nil if it has none
	isShared  bool         // all ranks share memory: collectives use shm
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
	// descriptor returns the file descriptor and size of this rank's shared region.
	descriptor() (fd, size int)
	// setStatus publishes this rank's status.
	setStatus(s rankStatus)
	// setConns sets the connections to the peers, by rank. Each has the peer's region.
	setConns(peers []*peerConn)
	waitingFor() []int
	alloc(size int) (device.Buffer, error)
}

var _ network = (*processNet)(nil)

func (n *processNet) run(p *plan) error {
	if n.isShared {
		return n.inMemory.run(p)
	}
	return n.overConns.run(p)
}

func (n *processNet) waitingFor() []int {
	if n.isShared {
		return n.shm.waitingFor()
	}
	return n.overConns.waitingFor()
}

func (n *processNet) alloc(size int) (device.Buffer, error) {
	if n.isShared {
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
