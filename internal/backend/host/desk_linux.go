package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/goddp/goddp/device"
)

// A desk is a rank's part of the board that processes of one host share: an
// arrival counter, a word that says whether its group broke or it left, two cards with their
// payloads, and scratch memory. Its rank alone writes it, except for the count of
// sleepers.
const (
	deskWord    = 2048
	deskCards   = 4096
	deskCard    = 4096 + inlineMax // one card, its payload from cardSize on
	deskScratch = deskCards + 2*deskCard
	deskBytes   = deskScratch + 4*pieceBytes
)

// deskBoard is the board of ranks that have mapped each other's desks.
type deskBoard struct {
	group      *Group
	rank, size int
	links      []*link // by rank, all with desks; nil for this rank
	desk       *segment

	// These belong to the collectives' goroutine.
	posts     int
	mine      card
	announced map[uint64]bool // segments that the peers know

	mu      sync.Mutex
	retired []uint64 // segments that the peers can forget
	chunk   *segment // that small buffers are cut from; nil before the first
	cut     int      // bytes of it
}

// Small buffers share a segment, each of which takes a descriptor. It is freed when
// none of them is in use any more, and no part of it is used twice.
const (
	smallBytes = 64 << 10
	chunkBytes = 16 * smallBytes
)

var _ sharedMemory = (*deskBoard)(nil)

// newSharedMemory makes this rank's desk.
func newSharedMemory(g *Group) (sharedMemory, error) {
	desk, err := newSegment(rand.Uint64(), deskBytes)
	if err != nil {
		return nil, err
	}
	return &deskBoard{
		group: g, rank: g.cfg.Rank, size: g.cfg.Size, desk: desk, announced: map[uint64]bool{},
	}, nil
}

func (b *deskBoard) descriptor() (fd, size int) { return b.desk.fd, deskBytes }

func (b *deskBoard) say(s deskState) { b.word(b.rank).Store(uint32(s)) }

// said is what a rank's desk says.
func (b *deskBoard) said(rank int) deskState { return deskState(b.word(rank).Load()) }

func (b *deskBoard) word(rank int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.memory(rank)[deskWord]))
}

func (b *deskBoard) adopt(links []*link) { b.links = links }

// memory is a rank's desk.
func (b *deskBoard) memory(rank int) []byte {
	if rank == b.rank {
		return b.desk.mem
	}
	return b.links[rank].desk.mem
}

func (b *deskBoard) arrival(rank int) *arrival {
	return (*arrival)(unsafe.Pointer(unsafe.SliceData(b.memory(rank))))
}

func (b *deskBoard) slot(rank int) []byte {
	return b.memory(rank)[deskCards+b.posts%2*deskCard:][:deskCard]
}

func (b *deskBoard) scratch(rank int) []byte { return b.memory(rank)[deskScratch:] }

func (b *deskBoard) post(c card) {
	b.posts++
	b.introduce(&c.src)
	b.introduce(&c.dst)
	b.dismiss()
	slot := b.slot(b.rank)
	c.encode(slot)
	copy(slot[cardSize:], c.payload)
	b.mine = c
	b.arrive()
}

// introduce makes r a reference that the peers understand, if it is to memory
// of Alloc's. A peer that does not hear of the segment, because its
// connection fails, is lost anyway.
func (b *deskBoard) introduce(r *ref) {
	s, ok := r.owner.(*segment)
	if !ok || len(r.mem) == 0 {
		return
	}
	r.segment, r.offset = s.id, s.offset(r.mem)
	if b.announced[s.id] {
		return
	}
	b.announced[s.id] = true
	s.audience.mu.Lock()
	s.audience.boards = append(s.audience.boards, weak.Make(b))
	s.audience.mu.Unlock()
	body := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, s.id), uint64(len(s.mem)))
	b.tell(frameSegment, body, s.fd)
}

// retire is called when a segment is freed: no call refers to it any more.
func (b *deskBoard) retire(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = append(b.retired, id)
}

// dismiss tells the peers of the segments that were freed since the last time.
func (b *deskBoard) dismiss() {
	b.mu.Lock()
	ids := b.retired
	b.retired = nil
	b.mu.Unlock()
	for _, id := range ids {
		delete(b.announced, id)
		b.tell(frameRetire, binary.LittleEndian.AppendUint64(nil, id), -1)
	}
}

func (b *deskBoard) tell(kind byte, body []byte, fd int) {
	for _, l := range b.links {
		if l != nil {
			l.tell(kind, body, fd)
		}
	}
}

func (b *deskBoard) arrive() { b.arrival(b.rank).advance() }

func (b *deskBoard) await() error {
	tick := b.arrival(b.rank).ticks.Load()
	for s := range b.size {
		if s == b.rank {
			continue
		}
		for a := b.arrival(s); !a.spin(tick); a.sleep(tick) {
			if err := context.Cause(b.group.ctx); err != nil {
				return err
			}
			if b.said(s) == rankLeft && !a.reached(tick) {
				return b.group.left(s)
			}
		}
	}
	for s := range b.size {
		if s != b.rank && b.said(s) == rankBroke {
			return b.group.lost(b.group.ctx, s, errBroke)
		}
	}
	return context.Cause(b.group.ctx)
}

func (b *deskBoard) missing() []int {
	var ranks []int
	tick := b.arrival(b.rank).ticks.Load()
	for s := range b.size {
		if !b.arrival(s).reached(tick) {
			ranks = append(ranks, s)
		}
	}
	return ranks
}

func (b *deskBoard) card(rank int) (card, error) {
	if rank == b.rank {
		return b.mine, nil
	}
	slot := b.slot(rank)
	c, payload := decodeCard(slot)
	if payload < 0 || payload > inlineMax {
		return c, fmt.Errorf("card of rank %d with a payload of %d bytes, at most %d", rank, payload, inlineMax)
	}
	c.payload = slot[cardSize:][:payload]
	return c, nil
}

func (b *deskBoard) reach(rank int, r *ref, n int) error {
	switch {
	case r.segment == 0:
		r.mem = nil
		return nil
	case rank == b.rank:
		return nil
	}
	m, err := b.links[rank].segment(b.group.ctx, r.segment)
	if err != nil {
		return err
	}
	if r.offset < 0 || n < 0 || r.offset > len(m.mem)-n {
		return fmt.Errorf("rank %d refers to %d bytes at %d of a segment of %d", rank, n, r.offset, len(m.mem))
	}
	r.mem, r.owner = m.mem[r.offset:r.offset+n], m
	return nil
}

func (b *deskBoard) alloc(size int) (device.Buffer, error) {
	if size <= smallBytes {
		return b.cutSmall(size)
	}
	s, err := newSegment(rand.Uint64(), size)
	if err != nil {
		return device.Buffer{}, err
	}
	return device.HostBuffer(s.mem[:size:size], s), nil
}

// cutSmall is alloc for a small buffer.
func (b *deskBoard) cutSmall(size int) (device.Buffer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.chunk == nil || b.cut+size > chunkBytes {
		s, err := newSegment(rand.Uint64(), chunkBytes)
		if err != nil {
			return device.Buffer{}, err
		}
		b.chunk, b.cut = s, 0
	}
	mem := b.chunk.mem[b.cut:][:size:size]
	b.cut += (size + device.Align - 1) / device.Align * device.Align
	return device.HostBuffer(mem, b.chunk), nil
}
