package host

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/internal/backend"
)

// connCollectives runs collectives over connections, among all or some ranks of the group.
type connCollectives struct {
	*transfers
	rank, size int         // this rank's position among ranks, and their number
	ranks      []int       // the ranks, by their numbers in the group
	hosts      *hostLevels // nil if AllReduce does not use shared memory
	headers    []byte      // the headers of the running collective
	work       []byte      // scratch memory
}

// newConnCollectives returns the collectives among some ranks of t's group, including this one.
func newConnCollectives(t *transfers, ranks []int) connCollectives {
	return connCollectives{transfers: t, rank: slices.Index(ranks, t.group.cfg.Rank), size: len(ranks), ranks: ranks}
}

// segmentBytes is the maximum number of bytes sent before the receiver starts to process them.
const segmentBytes = 128 << 10

// run executes a collective. First all ranks exchange headers. If the data is inline in the
// headers, nothing else is needed.
func (cc *connCollectives) run(p *plan) error {
	return cc.finish(cc.execute(p))
}

func (cc *connCollectives) execute(p *plan) error {
	p.inlineLimit = inlineLimit(p.size)
	mine := p.header()
	if cc.hosts != nil && p.call.Kind == backend.AllReduce {
		cc.hosts.shm.announce(&mine)
	}
	headers, err := cc.exchangeHeaders(mine)
	if err != nil {
		return err
	}
	if err := p.checkHeaders(headers); err != nil {
		return err
	}
	if p.algorithm() == inHeaders {
		p.fillDst(0, p.maxBlock, func(s int) []byte {
			from, to := p.srcRange(s, cc.rank, 0, p.maxBlock)
			return headers[s].payload[from:to]
		})
		return nil
	}
	if cc.hosts.canReduce(p, headers) {
		return cc.hosts.allReduce(p, headers)
	}
	return cc.move(p)
}

// move moves data that is not in the headers.
func (cc *connCollectives) move(p *plan) error {
	switch p.algorithm() {
	case halving:
		return cc.halving(p)
	case ring:
		return cc.ring(p)
	case tree:
		return cc.tree(p, binomial(p))
	case chain:
		return cc.tree(p, linear(p))
	default:
		return cc.pairwise(p)
	}
}

func (cc *connCollectives) send(to int, data []byte) { cc.transfers.send(cc.ranks[to], data) }

func (cc *connCollectives) recv(from int, data []byte) error {
	return cc.transfers.recv(cc.ranks[from], data)
}

// scratch returns n bytes, which are valid until the next call.
func (cc *connCollectives) scratch(n int) []byte {
	if len(cc.work) < n {
		cc.work = make([]byte, n)
	}
	return cc.work[:n]
}

// exchangeHeaders sends c to every peer and returns the headers of all ranks. The headers contain
// the data if it is inline. Then the collective takes, where S is the length of Src:
//
//	steps: log2 N, rounded up (see the function rounds)
//	bytes sent: (N-1)·(S + headerSize)
func (cc *connCollectives) exchangeHeaders(c callHeader) ([]callHeader, error) {
	headers := make([]callHeader, cc.size)
	headers[cc.rank] = c
	cc.headers = c.appendTo(cc.headers[:0])
	ends := make([]int, 1, cc.size) // where each header in cc.headers ends: this rank's header, then the next ranks'
	ends[0] = len(cc.headers)
	steps, sent := rounds(cc.size), 0
	for _, step := range steps {
		for ; sent < len(steps) && steps[sent].blocks() <= len(ends); sent++ {
			cc.send((cc.rank+cc.size-steps[sent].lo)%cc.size, cc.headers[:ends[steps[sent].blocks()-1]])
		}
		from := (cc.rank + step.lo) % cc.size
		for i := step.lo; i < step.hi; i++ {
			h, err := cc.recvHeader(from)
			if err != nil {
				return nil, err
			}
			headers[(cc.rank+i)%cc.size] = h
			if sent < len(steps) { // a later round forwards it
				cc.headers = h.appendTo(cc.headers)
				ends = append(ends, len(cc.headers))
			}
		}
	}
	return headers, nil
}

func (cc *connCollectives) recvHeader(from int) (callHeader, error) {
	head := make([]byte, headerSize)
	if err := cc.recv(from, head); err != nil {
		return callHeader{}, err
	}
	h, payload := decodeHeader(head)
	if payload < 0 || payload > maxInline {
		return h, fmt.Errorf("header from rank %d with a payload of %d bytes, want at most %d", from, payload, maxInline)
	}
	h.payload = make([]byte, payload)
	return h, cc.recv(from, h.payload)
}
