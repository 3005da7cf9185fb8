package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/goddp/goddp/device"
)

// Layout of a rank's shared region: a barrier counter, the rank's status, two headers with their
// payloads, and scratch memory. Only its rank writes to it, except for the number of sleeping peers
// in the barrier counter.
const (
	statusOffset    = 2048
	headersOffset   = 4096
	headerSlotBytes = 4096 + maxInline // one header; its payload begins at headerSize
	scratchOffset   = headersOffset + 2*headerSlotBytes
	regionBytes     = scratchOffset + 4*pieceBytes
)

// shmGroup is the memoryGroup of ranks that have mapped each other's shared regions.
type shmGroup struct {
	group      *Group
	rank, size int         // this rank's position among ranks, and their number
	ranks      []int       // the ranks that share memory, by their numbers in the group
	peers      []*peerConn // the connections to them, all with regions; nil for this rank
	region     *segment

	// Only the collectives' goroutine uses these fields.
	posts     int
	mine      callHeader
	announced map[uint64]bool // ids of segments that the peers know

	mu      sync.Mutex
	retired []uint64 // ids of freed segments that the peers still know
	chunk   *segment // small buffers are cut from it; nil at first
	cut     int      // bytes of chunk in use
}

// Small buffers share a segment, because each segment needs a file descriptor. A chunk is freed
// when none of its buffers is in use. Parts of a chunk are not reused.
const (
	smallBytes = 64 << 10
	chunkBytes = 16 * smallBytes
)

var _ sharedMemory = (*shmGroup)(nil)

// newSharedMemory creates this rank's shared region.
func newSharedMemory(g *Group) (sharedMemory, error) {
	region, err := newSegment(rand.Uint64(), regionBytes)
	if err != nil {
		return nil, err
	}
	return &shmGroup{
		group: g, region: region, announced: map[uint64]bool{},
	}, nil
}

func (g *shmGroup) descriptor() (fd, size int) { return g.region.fd, regionBytes }

func (g *shmGroup) setStatus(s rankStatus) { statusIn(g.region.mem).Store(uint32(s)) }

// status returns the status that a rank published.
func (g *shmGroup) status(rank int) rankStatus { return rankStatus(statusIn(g.memory(rank)).Load()) }

func statusIn(region []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&region[statusOffset]))
}

func (g *shmGroup) connect(ranks []int, peers []*peerConn) {
	g.ranks, g.size, g.rank = ranks, len(ranks), slices.Index(ranks, g.group.cfg.Rank)
	for _, r := range ranks {
		g.peers = append(g.peers, peers[r])
	}
}

// memory returns a rank's shared region.
func (g *shmGroup) memory(rank int) []byte {
	if rank == g.rank {
		return g.region.mem
	}
	return g.peers[rank].region.mem
}

func (g *shmGroup) counter(rank int) *barrierCounter {
	return (*barrierCounter)(unsafe.Pointer(unsafe.SliceData(g.memory(rank))))
}

func (g *shmGroup) slot(rank int) []byte {
	return g.memory(rank)[headersOffset+g.posts%2*headerSlotBytes:][:headerSlotBytes]
}

func (g *shmGroup) scratch(rank int) []byte { return g.memory(rank)[scratchOffset:] }

func (g *shmGroup) postHeader(c callHeader) {
	g.posts++
	g.announce(&c)
	slot := g.slot(g.rank)
	c.encode(slot)
	copy(slot[headerSize:], c.payload)
	g.mine = c
	g.arrive()
}

func (g *shmGroup) announce(c *callHeader) {
	g.announceMemory(&c.src)
	g.announceMemory(&c.dst)
	g.announceRetired()
}

// announceMemory sets r's segment and offset if the memory is from Alloc, and announces the segment
// to peers that do not know it. Errors are ignored: a peer whose connection fails is lost anyway.
func (g *shmGroup) announceMemory(r *memRef) {
	s, ok := r.owner.(*segment)
	if !ok || len(r.mem) == 0 {
		return
	}
	r.segment, r.offset = s.id, s.offset(r.mem)
	if g.announced[s.id] {
		return
	}
	g.announced[s.id] = true
	s.peers.mu.Lock()
	s.peers.groups = append(s.peers.groups, weak.Make(g))
	s.peers.mu.Unlock()
	body := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, s.id), uint64(len(s.mem)))
	g.sendFrame(frameSegment, body, s.fd)
}

// retire records that a segment was freed. No later call uses it.
func (g *shmGroup) retire(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retired = append(g.retired, id)
}

// announceRetired tells the peers which segments were freed since the last call.
func (g *shmGroup) announceRetired() {
	g.mu.Lock()
	ids := g.retired
	g.retired = nil
	g.mu.Unlock()
	for _, id := range ids {
		delete(g.announced, id)
		g.sendFrame(frameRetire, binary.LittleEndian.AppendUint64(nil, id), -1)
	}
}

func (g *shmGroup) sendFrame(kind byte, body []byte, fd int) {
	for _, l := range g.peers {
		if l != nil {
			l.sendFrame(kind, body, fd)
		}
	}
}

func (g *shmGroup) arrive() { g.counter(g.rank).advance() }

func (g *shmGroup) await() error {
	target := g.counter(g.rank).count.Load()
	for s := range g.size {
		if s == g.rank {
			continue
		}
		for c := g.counter(s); !c.spin(target); c.sleep(target) {
			if err := context.Cause(g.group.ctx); err != nil {
				return err
			}
			if g.status(s) == statusLeft && !c.hasReached(target) {
				return g.group.peerLeft(g.ranks[s])
			}
		}
	}
	for s := range g.size {
		if s != g.rank && g.status(s) == statusBroken {
			return g.group.peerLost(g.group.ctx, g.ranks[s], errBroke)
		}
	}
	return context.Cause(g.group.ctx)
}

func (g *shmGroup) waitingFor() []int {
	var ranks []int
	target := g.counter(g.rank).count.Load()
	for s := range g.size {
		if !g.counter(s).hasReached(target) {
			ranks = append(ranks, g.ranks[s])
		}
	}
	return ranks
}

func (g *shmGroup) header(rank int) (callHeader, error) {
	if rank == g.rank {
		return g.mine, nil
	}
	slot := g.slot(rank)
	c, payload := decodeHeader(slot)
	if payload < 0 || payload > maxInline {
		return c, fmt.Errorf("header of rank %d with a payload of %d bytes, want at most %d", rank, payload, maxInline)
	}
	c.payload = slot[headerSize:][:payload]
	return c, nil
}

func (g *shmGroup) resolve(rank int, r *memRef, n int) error {
	switch {
	case r.segment == 0:
		r.mem = nil
		return nil
	case rank == g.rank:
		return nil
	}
	m, err := g.peers[rank].segment(g.group.ctx, r.segment)
	if err != nil {
		return err
	}
	if r.offset < 0 || n < 0 || r.offset > len(m.mem)-n {
		return fmt.Errorf("rank %d refers to %d bytes at offset %d of its shared memory, which has %d bytes", rank, n, r.offset, len(m.mem))
	}
	r.mem, r.owner = m.mem[r.offset:r.offset+n], m
	return nil
}

func (g *shmGroup) alloc(size int) (device.Buffer, error) {
	if size <= smallBytes {
		return g.allocSmall(size)
	}
	s, err := newSegment(rand.Uint64(), size)
	if err != nil {
		return device.Buffer{}, err
	}
	return device.HostBuffer(s.mem[:size:size], s), nil
}

// allocSmall is alloc for a small buffer.
func (g *shmGroup) allocSmall(size int) (device.Buffer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.chunk == nil || g.cut+size > chunkBytes {
		s, err := newSegment(rand.Uint64(), chunkBytes)
		if err != nil {
			return device.Buffer{}, err
		}
		g.chunk, g.cut = s, 0
	}
	mem := g.chunk.mem[g.cut:][:size:size]
	g.cut += (size + device.Align - 1) / device.Align * device.Align
	return device.HostBuffer(mem, g.chunk), nil
}
