package host

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// InProcess connects ranks that are goroutines of one process. They exchange Go memory under Go
// locks, so the race detector sees every access, and all waits work with the fake clock of
// testing/synctest. An InProcess can serve several groups concurrently.
type InProcess struct {
	mu     sync.Mutex
	next   int
	groups map[string]*inprocGroup // groups that some ranks have not joined yet, by name
}

// NewInProcess returns an InProcess, to be shared by the ranks of a process.
func NewInProcess() *InProcess { return &InProcess{groups: map[string]*inprocGroup{}} }

// inprocGroup is the state that the ranks of one group share.
type inprocGroup struct {
	mu        sync.Mutex
	changed   sync.Cond // uses mu; signals that a rank joined, arrived at a barrier, left, or broke its group
	members   []member
	joined    int
	mailboxes map[[2]int]chan *message // by sender and receiver
}

// member is one rank's part of an inprocGroup. Only that rank writes it.
type member struct {
	count   uint64        // barriers at which the rank arrived
	broke   bool          // the rank's group broke: its memory may change at any time
	posts   int           // headers posted
	headers [2]callHeader // the latest two headers, with copies of their payloads
	closed  chan struct{} // closed when the rank has closed its group
}

// inprocNet is the network of one rank of an inprocGroup.
type inprocNet struct {
	*inprocGroup
	memCollectives
	group *Group
}

var (
	_ network     = (*inprocNet)(nil)
	_ memoryGroup = (*inprocNet)(nil)
)

// join creates the network of g. Rank 0 creates the inprocGroup and sends its name to the other
// ranks.
func (p *InProcess) join(ctx context.Context, g *Group) error {
	var ownName []byte
	if g.cfg.Rank == 0 {
		ownName = []byte(p.open(g.cfg.Size))
	}
	names, err := g.cfg.Control.Gather(ctx, "host/inproc", ownName)
	if err != nil {
		return err
	}
	name := names[0]
	p.mu.Lock()
	r := p.groups[string(name)]
	p.mu.Unlock()
	if r == nil || len(r.members) != g.cfg.Size {
		return fmt.Errorf("host: rank 0 created the group %q with another InProcess: want one InProcess for all %d ranks", name, g.cfg.Size)
	}
	n := &inprocNet{inprocGroup: r, group: g}
	n.memCollectives = memCollectives{memoryGroup: n, rank: g.cfg.Rank, size: g.cfg.Size}

	defer context.AfterFunc(ctx, n.wake)()
	r.mu.Lock()
	defer r.mu.Unlock()
	g.net = n
	if r.joined++; r.joined == g.cfg.Size {
		p.mu.Lock()
		delete(p.groups, string(name))
		p.mu.Unlock()
		r.changed.Broadcast()
	}
	for r.joined < g.cfg.Size {
		if ctx.Err() != nil {
			r.joined-- // this rank leaves the incomplete group, so that a later rank cannot complete it
			return context.Cause(ctx)
		}
		r.changed.Wait()
	}
	return nil
}

// open creates an inprocGroup and returns its name.
func (p *InProcess) open(size int) string {
	r := &inprocGroup{members: make([]member, size), mailboxes: map[[2]int]chan *message{}}
	r.changed.L = &r.mu
	for i := range r.members {
		r.members[i].closed = make(chan struct{})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	name := strconv.Itoa(p.next)
	p.groups[name] = r
	return name
}

func (n *inprocNet) run(p *plan) error { return n.memCollectives.run(p) }

func (n *inprocNet) postHeader(c callHeader) {
	n.mu.Lock()
	s := &n.members[n.rank]
	s.posts++
	mine := &s.headers[s.posts%2]
	c.payload = append(mine.payload[:0], c.payload...)
	*mine = c
	n.mu.Unlock()
	n.arrive()
}

func (n *inprocNet) arrive() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members[n.rank].count++
	n.changed.Broadcast()
}

func (n *inprocNet) await() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.members {
		for n.members[s].count < n.members[n.rank].count {
			if n.group.ctx.Err() != nil {
				return context.Cause(n.group.ctx)
			}
			if isClosed(n.members[s].closed) {
				return n.group.peerLeft(s)
			}
			n.changed.Wait()
		}
	}
	return n.checkPeers()
}

// checkPeers returns an error if a peer's group broke, because this rank may have read that peer's
// memory. n.mu must be held.
func (n *inprocNet) checkPeers() error {
	for s := range n.members {
		if s != n.rank && n.members[s].broke {
			return n.group.peerLost(n.group.ctx, s, errBroke)
		}
	}
	return context.Cause(n.group.ctx)
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (n *inprocNet) header(rank int) (callHeader, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.members[rank].headers[n.members[n.rank].posts%2], nil
}

// resolve does nothing: all ranks are in one address space.
func (n *inprocNet) resolve(int, *memRef, int) error { return nil }

// scratch is not used: every rank can access all memory.
func (n *inprocNet) scratch(int) []byte { return nil }

func (n *inprocNet) waitingFor() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ranks []int
	for s := range n.members {
		if n.members[s].count < n.members[n.rank].count {
			ranks = append(ranks, s)
		}
	}
	return ranks
}

// message is a Send that waits for its Recv. data is the sender's memory.
type message struct {
	fingerprint backend.Fingerprint
	data        []byte
	taken       chan struct{}
}

// mailbox returns the channel for messages from one rank to another.
func (n *inprocNet) mailbox(from, to int) chan *message {
	n.mu.Lock()
	defer n.mu.Unlock()
	pair := [2]int{from, to}
	if n.mailboxes[pair] == nil {
		n.mailboxes[pair] = make(chan *message)
	}
	return n.mailboxes[pair]
}

func (n *inprocNet) send(c *backend.Call, data []byte) error {
	p := &message{fingerprint: c.Fingerprint(), data: data, taken: make(chan struct{})}
	closed := n.members[c.Root].closed
	select {
	case n.mailbox(n.rank, c.Root) <- p:
	case <-closed:
		return n.group.peerLeft(c.Root)
	case <-n.group.ctx.Done():
		return context.Cause(n.group.ctx)
	}
	select {
	case <-p.taken:
		return nil
	case <-n.group.ctx.Done():
		return context.Cause(n.group.ctx)
	}
}

func (n *inprocNet) recv(c *backend.Call, data []byte) error {
	select {
	case p := <-n.mailbox(c.Root, n.rank):
		if err := n.group.matchSend(c, p.fingerprint); err != nil {
			return err
		}
		copy(data, p.data)
		close(p.taken)
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.checkPeers()
	case <-n.members[c.Root].closed:
		return n.group.peerLeft(c.Root)
	case <-n.group.ctx.Done():
		return context.Cause(n.group.ctx)
	}
}

func (n *inprocNet) alloc(size int) (device.Buffer, error) { return allocGo(size) }

func (n *inprocNet) markBroken() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members[n.rank].broke = true
}

func (n *inprocNet) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed.Broadcast()
}

func (n *inprocNet) close(bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.members[n.rank].closed)
	n.changed.Broadcast()
}
