package host

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// InProcess joins ranks that are goroutines of one process. They exchange Go memory
// under Go's own locks, so the race detector sees every hand-over and the
// fake clock of testing/synctest runs all that waits. A InProcess serves any number
// of groups, one after the other or at once.
type InProcess struct {
	mu    sync.Mutex
	next  int
	rooms map[string]*room // made and not yet complete
}

// NewInProcess returns a InProcess for the ranks of a process to share.
func NewInProcess() *InProcess { return &InProcess{rooms: map[string]*room{}} }

// room is what the ranks of one group share.
type room struct {
	mu      sync.Mutex
	changed sync.Cond // of mu: a rank joined, arrived, left, or broke its group
	seats   []seat
	joined  int
	boxes   map[[2]int]chan *parcel // by sender and receiver
}

// seat is one rank's part of a room, written by that rank alone.
type seat struct {
	ticks uint64        // gates arrived at
	broke bool          // its group broke: what it shares may change at any time
	posts int           // cards posted
	cards [2]card       // of the last collectives, with payloads of their own
	gone  chan struct{} // closed when the rank closed its group
}

// hubNet is the network of a rank in a room.
type hubNet struct {
	*room
	table
	group *Group
}

var (
	_ network = (*hubNet)(nil)
	_ board   = (*hubNet)(nil)
)

// join makes the network of g, which finds the other ranks: rank 0 makes the
// room and tells its name.
func (h *InProcess) join(ctx context.Context, g *Group) error {
	var made []byte
	if g.cfg.Rank == 0 {
		made = []byte(h.open(g.cfg.Size))
	}
	rooms, err := g.cfg.Control.Gather(ctx, "host/room", made)
	if err != nil {
		return err
	}
	name := rooms[0]
	h.mu.Lock()
	r := h.rooms[string(name)]
	h.mu.Unlock()
	if r == nil || len(r.seats) != g.cfg.Size {
		return fmt.Errorf("host: no room %q for %d ranks at this hub", name, g.cfg.Size)
	}
	n := &hubNet{room: r, group: g}
	n.table = table{board: n, rank: g.cfg.Rank, size: g.cfg.Size}

	defer context.AfterFunc(ctx, n.wake)()
	r.mu.Lock()
	defer r.mu.Unlock()
	g.net = n
	if r.joined++; r.joined == g.cfg.Size {
		h.mu.Lock()
		delete(h.rooms, string(name))
		h.mu.Unlock()
		r.changed.Broadcast()
	}
	for r.joined < g.cfg.Size {
		if ctx.Err() != nil {
			r.joined-- // or the last to come would find nobody
			return context.Cause(ctx)
		}
		r.changed.Wait()
	}
	return nil
}

// open makes a room and returns its name.
func (h *InProcess) open(size int) string {
	r := &room{seats: make([]seat, size), boxes: map[[2]int]chan *parcel{}}
	r.changed.L = &r.mu
	for i := range r.seats {
		r.seats[i].gone = make(chan struct{})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	name := strconv.Itoa(h.next)
	h.rooms[name] = r
	return name
}

func (n *hubNet) run(p *plan) error { return n.table.run(p) }

func (n *hubNet) post(c card) {
	n.mu.Lock()
	s := &n.seats[n.rank]
	s.posts++
	mine := &s.cards[s.posts%2]
	c.payload = append(mine.payload[:0], c.payload...)
	*mine = c
	n.mu.Unlock()
	n.arrive()
}

func (n *hubNet) arrive() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seats[n.rank].ticks++
	n.changed.Broadcast()
}

func (n *hubNet) await() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.seats {
		for n.seats[s].ticks < n.seats[n.rank].ticks {
			if n.group.ctx.Err() != nil {
				return context.Cause(n.group.ctx)
			}
			if closed(n.seats[s].gone) {
				return n.group.left(s)
			}
			n.changed.Wait()
		}
	}
	return n.sound()
}

// sound is the error of what this rank read of the others, whose memory may have
// changed. n.mu is held.
func (n *hubNet) sound() error {
	for s := range n.seats {
		if s != n.rank && n.seats[s].broke {
			return n.group.lost(n.group.ctx, s, errBroke)
		}
	}
	return context.Cause(n.group.ctx)
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (n *hubNet) card(rank int) (card, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seats[rank].cards[n.seats[n.rank].posts%2], nil
}

// reach has nothing to do: all ranks address all memory alike.
func (n *hubNet) reach(int, *ref, int) error { return nil }

// scratch is not needed: every rank reaches all memory.
func (n *hubNet) scratch(int) []byte { return nil }

func (n *hubNet) missing() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ranks []int
	for s := range n.seats {
		if n.seats[s].ticks < n.seats[n.rank].ticks {
			ranks = append(ranks, s)
		}
	}
	return ranks
}

// parcel is what a Send hands to the Recv: the sender's memory.
type parcel struct {
	print backend.Fingerprint
	data  []byte
	taken chan struct{}
}

// box is where parcels from one rank to another are handed over.
func (n *hubNet) box(from, to int) chan *parcel {
	n.mu.Lock()
	defer n.mu.Unlock()
	pair := [2]int{from, to}
	if n.boxes[pair] == nil {
		n.boxes[pair] = make(chan *parcel)
	}
	return n.boxes[pair]
}

func (n *hubNet) send(c *backend.Call, data []byte) error {
	p := &parcel{print: c.Fingerprint(), data: data, taken: make(chan struct{})}
	gone := n.seats[c.Root].gone
	select {
	case n.box(n.rank, c.Root) <- p:
	case <-gone:
		return n.group.left(c.Root)
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

func (n *hubNet) recv(c *backend.Call, data []byte) error {
	select {
	case p := <-n.box(c.Root, n.rank):
		if err := n.group.matchSend(c, p.print); err != nil {
			return err
		}
		copy(data, p.data)
		close(p.taken)
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.sound()
	case <-n.seats[c.Root].gone:
		return n.group.left(c.Root)
	case <-n.group.ctx.Done():
		return context.Cause(n.group.ctx)
	}
}

func (n *hubNet) alloc(size int) (device.Buffer, error) { return allocGo(size) }

func (n *hubNet) breaks() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seats[n.rank].broke = true
}

func (n *hubNet) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed.Broadcast()
}

func (n *hubNet) close(bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.seats[n.rank].gone)
	n.changed.Broadcast()
}
