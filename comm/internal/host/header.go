package host

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// callHeader is sent to every peer before a collective moves data. It contains the collective that
// the rank called, the location of its memory, and small payloads. Every rank first compares all
// headers with its own call, so if ranks called different collectives, all of them fail before any
// memory is written.
type callHeader struct {
	fingerprint backend.Fingerprint
	srcBytes    int    // length of Src on this rank
	countsHash  uint64 // 0 if Counts is nil
	src, dst    memRef
	payload     []byte // Src itself if it is small; memory of the network
}

// memRef refers to memory that the peers may be able to access.
type memRef struct {
	mem     []byte // the memory as mapped in this process; nil if this process cannot access it
	owner   any    // keeps mem mapped
	segment uint64 // id of the segment that contains the memory; 0 if peers cannot access it
	offset  int
}

// headerSize is the length of an encoded header without its payload.
const headerSize = 80

// encode writes the header, headerSize bytes, to b. The lengths of src and dst are not encoded:
// they follow from the fingerprint and srcBytes.
func (c *callHeader) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], c.fingerprint.Seq)
	b[8], b[9], b[10], b[11] = byte(c.fingerprint.Kind), byte(c.fingerprint.Op), byte(c.fingerprint.DType), 0
	le.PutUint32(b[12:], uint32(c.fingerprint.Root))
	le.PutUint64(b[16:], uint64(c.fingerprint.Count))
	le.PutUint64(b[24:], uint64(c.srcBytes))
	le.PutUint64(b[32:], c.src.segment)
	le.PutUint64(b[40:], uint64(c.src.offset))
	le.PutUint64(b[48:], c.dst.segment)
	le.PutUint64(b[56:], uint64(c.dst.offset))
	le.PutUint64(b[64:], uint64(len(c.payload)))
	le.PutUint64(b[72:], c.countsHash)
}

// appendTo appends the encoded header and the payload to b.
func (c *callHeader) appendTo(b []byte) []byte {
	b = append(b, make([]byte, headerSize)...)
	c.encode(b[len(b)-headerSize:])
	return append(b, c.payload...)
}

// decodeHeader decodes b, which encode wrote. It also returns the length of the payload.
func decodeHeader(b []byte) (c callHeader, payload int) {
	le := binary.LittleEndian
	c.fingerprint = backend.Fingerprint{
		Seq: le.Uint64(b[0:]), Kind: backend.Kind(b[8]), Op: backend.ReduceOp(b[9]), DType: device.DType(b[10]),
		Root: int(int32(le.Uint32(b[12:]))), Count: int(le.Uint64(b[16:])),
	}
	c.srcBytes = int(le.Uint64(b[24:]))
	c.src = memRef{segment: le.Uint64(b[32:]), offset: int(le.Uint64(b[40:]))}
	c.dst = memRef{segment: le.Uint64(b[48:]), offset: int(le.Uint64(b[56:]))}
	c.countsHash = le.Uint64(b[72:])
	return c, int(le.Uint64(b[64:]))
}

// header returns this rank's header for p.
func (p *plan) header() callHeader {
	c := callHeader{fingerprint: p.fingerprint, srcBytes: len(p.src), countsHash: hashCounts(p.call.Counts)}
	if p.hasSrc(p.rank) {
		if p.isInline() {
			c.payload = p.src
		} else {
			c.src = memRef{mem: p.src, owner: p.call.Src.Buf.Owner()}
		}
	}
	if p.isSharedReduction() && p.hasDst(p.rank) && !p.isInline() {
		c.dst = memRef{mem: p.dst, owner: p.call.Dst.Buf.Owner()} // the same length as Src
	}
	return c
}

// maxInline is the maximum size of a header's payload, in bytes.
const maxInline = 16 << 10

// isInline reports whether the headers contain all data of the collective. The result is the same
// on all ranks with equal fingerprints.
func (p *plan) isInline() bool { return p.srcBytes() <= p.inlineLimit }

// checkHeaders compares the headers of all ranks with this rank's plan. If it returns nil, every
// payload has the length that the plan reads.
func (p *plan) checkHeaders(headers []callHeader) error {
	counts := hashCounts(p.call.Counts)
	for peer, c := range headers {
		mine, theirs := p.fingerprint, c.fingerprint
		if mine == theirs && c.countsHash == counts {
			if want := p.blockLen(peer) * p.blocksPerSrc(); p.hasSrc(peer) && (c.srcBytes != want || p.isInline() && len(c.payload) != want) {
				return fmt.Errorf("rank %d sent a header for %v with Src of %d bytes, %d of them inline: want %d bytes", peer, theirs, c.srcBytes, len(c.payload), want)
			}
			continue
		}
		if mine == theirs {
			// The totals of Counts are equal, so report this peer's expected and actual count.
			mine.Count, theirs.Count = p.blockLen(peer)/p.dtype.Size(), c.srcBytes/p.dtype.Size()
		}
		return mismatchError(p.members, p.rank, peer, mine, theirs)
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
