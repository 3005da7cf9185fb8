package host

import (
	"fmt"
)

// connCollectives runs collectives over connections.
type connCollectives struct {
	*transfers
	rank, size int
	headers    []byte // the headers of the running collective
	work       []byte // scratch memory
}

// segmentBytes is the most that is sent before the receiver starts to process it.
const segmentBytes = 128 << 10

// run executes a collective. First all ranks exchange headers. If the data is inline in the
// headers, nothing else is needed.
func (cc *connCollectives) run(p *plan) error {
	return cc.finish(cc.execute(p))
}

func (cc *connCollectives) execute(p *plan) error {
	p.inlineLimit = inlineLimit(p.size)
	headers, err := cc.exchangeHeaders(p.header())
	if err != nil {
		return err
	}
	if err := p.checkHeaders(headers); err != nil {
		return err
	}
	switch p.algorithm() {
	case inHeaders:
		p.fillDst(0, p.maxBlock, func(s int) []byte {
			from, to := p.srcRange(s, cc.rank, 0, p.maxBlock)
			return headers[s].payload[from:to]
		})
		return nil
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

// scratch returns n bytes, which are valid until the next call.
func (cc *connCollectives) scratch(n int) []byte {
	if len(cc.work) < n {
		cc.work = make([]byte, n)
	}
	return cc.work[:n]
}

// exchangeHeaders sends c to every peer and returns the headers of all ranks. If the data is
// inline:
//
//	steps: those of rounds
//	bytes sent: (N-1)·(S + the header)
func (cc *connCollectives) exchangeHeaders(c callHeader) ([]callHeader, error) {
	headers := make([]callHeader, cc.size)
	headers[cc.rank] = c
	cc.headers = c.appendTo(cc.headers[:0])
	ends := make([]int, 1, cc.size) // of the headers in cc.headers: this rank's, then those of the next ranks
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
		return h, fmt.Errorf("header from rank %d with a payload of %d bytes, at most %d", from, payload, maxInline)
	}
	h.payload = make([]byte, payload)
	return h, cc.recv(from, h.payload)
}
