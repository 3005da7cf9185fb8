package host

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// card is what a rank shows the others when it comes to a collective: which
// one it means, where its memory is, and a small payload itself. Every rank
// sees every card before a byte moves, so that ranks that mean different
// collectives all learn it, and none is harmed.
type card struct {
	print    backend.Fingerprint
	given    int    // bytes of Src on this rank
	counts   uint64 // a hash of Counts
	src, dst ref
	payload  []byte // Src itself, where it is small; the board's or the wire's memory
}

// ref is memory that the peers may be able to reach.
type ref struct {
	mem     []byte // as the rank that has the card addresses it; nil: it cannot
	owner   any    // keeps mem mapped
	segment uint64 // where it lies, 0 for memory that the owner's peers cannot reach
	offset  int
}

// cardSize is the length of an encoded card without its payload.
const cardSize = 80

// encode writes c's cardSize bytes to b. Lengths of memory are not told: they
// follow from the fingerprint and from given.
func (c *card) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], c.print.Seq)
	b[8], b[9], b[10], b[11] = byte(c.print.Kind), byte(c.print.Op), byte(c.print.DType), 0
	le.PutUint32(b[12:], uint32(c.print.Root))
	le.PutUint64(b[16:], uint64(c.print.Count))
	le.PutUint64(b[24:], uint64(c.given))
	le.PutUint64(b[32:], c.src.segment)
	le.PutUint64(b[40:], uint64(c.src.offset))
	le.PutUint64(b[48:], c.dst.segment)
	le.PutUint64(b[56:], uint64(c.dst.offset))
	le.PutUint64(b[64:], uint64(len(c.payload)))
	le.PutUint64(b[72:], c.counts)
}

// decodeCard reads what encode wrote, and the length of the payload.
func decodeCard(b []byte) (c card, payload int) {
	le := binary.LittleEndian
	c.print = backend.Fingerprint{
		Seq: le.Uint64(b[0:]), Kind: backend.Kind(b[8]), Op: backend.ReduceOp(b[9]), DType: device.DType(b[10]),
		Root: int(int32(le.Uint32(b[12:]))), Count: int(le.Uint64(b[16:])),
	}
	c.given = int(le.Uint64(b[24:]))
	c.src = ref{segment: le.Uint64(b[32:]), offset: int(le.Uint64(b[40:]))}
	c.dst = ref{segment: le.Uint64(b[48:]), offset: int(le.Uint64(b[56:]))}
	c.counts = le.Uint64(b[72:])
	return c, int(le.Uint64(b[64:]))
}

// card is what this rank shows for p.
func (p *plan) card() card {
	c := card{print: p.print, given: len(p.src), counts: hashCounts(p.call.Counts)}
	if p.gives(p.rank) {
		if p.inlines() {
			c.payload = p.src
		} else {
			c.src = ref{mem: p.src, owner: p.call.Src.Buf.Owner()}
		}
	}
	if p.shares() && p.takes(p.rank) && !p.inlines() {
		c.dst = ref{mem: p.dst, owner: p.call.Dst.Buf.Owner()} // of c.given bytes, as Src is
	}
	return c
}

// inlineMax is the largest Src, in bytes, that travels on the card itself.
const inlineMax = 16 << 10

// inlines tells whether the cards carry all there is to move. It is the same
// on all ranks whose fingerprints agree.
func (p *plan) inlines() bool { return p.payload() <= inlineMax }

// check compares the cards of all ranks with this rank's plan. Cards that agree with it
// are of the sizes that the plan reads.
func (p *plan) check(cards []card) error {
	counts := hashCounts(p.call.Counts)
	for peer, c := range cards {
		mine, theirs := p.print, c.print
		if mine == theirs && c.counts == counts {
			if want := p.width(peer) * p.given(); p.gives(peer) && (c.given != want || p.inlines() && len(c.payload) != want) {
				return fmt.Errorf("card of rank %d for %v: it gives %d bytes, %d of them with the card, want %d", peer, theirs, c.given, len(c.payload), want)
			}
			continue
		}
		if mine == theirs {
			// The sums of Counts agree: show what the peer gives, and should.
			mine.Count, theirs.Count = p.width(peer)/p.dtype.Size(), c.given/p.dtype.Size()
		}
		return mismatched(p.members, p.rank, peer, mine, theirs)
	}
	return nil
}

func hashCounts(counts []int) uint64 {
	if counts == nil {
		return 0
	}
	h := fnv.New64a()
	for _, n := range counts {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
	return h.Sum64()
}
