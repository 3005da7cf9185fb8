package collective

import (
	"bytes"
	"context"
	"math/bits"
	"math/rand/v2"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// period is after how many elements a pattern repeats itself. It is prime, so
// that an element that was moved by a round number of others is noticed.
const period = 65521

// pattern is what the ranks' sources hold in one round, element i being that
// of tables' element i modulo their length, and what is to come of it.
type pattern struct {
	dt      device.DType
	given   [][]byte // by rank
	reduced []byte   // all ranks', combined
	slack   float64  // by how much a reduction may be wrong, relative to it
	host    device.Device
}

// piece is a run of a rank's dst: n elements of a table, from element first.
type piece struct {
	table    []byte
	first, n int
}

// newPattern draws the pattern of a round for sources of so many elements.
// Rounds differ, so that what an earlier one left behind is noticed. host is a
// device whose memory is the host's.
func newPattern(host device.Device, round uint64, cfg *Config, ranks, elements int) *pattern {
	p := &pattern{dt: cfg.DType, host: host}
	n := min(elements, period)
	given := make([][]float64, ranks)
	for r := range given {
		given[r] = draw(round, cfg, r, ranks, n)
		p.given = append(p.given, p.encode(given[r]))
	}
	if !cfg.Collective.Reduces {
		return p
	}
	reduced := make([]float64, n)
	for i := range reduced {
		v := given[0][i]
		for _, g := range given[1:] {
			v = combine(cfg.Op, v, g[i])
		}
		if cfg.Op == comm.Avg {
			v /= float64(ranks)
		}
		reduced[i] = v
	}
	p.reduced = p.encode(reduced) // an average of integers goes towards zero, as the group's does
	if cfg.Op == comm.Avg && bits.OnesCount(uint(ranks)) > 1 {
		// 1/ranks, each product with it, and each sum are rounded.
		p.slack = float64(ranks+2) * roundoff[cfg.DType]
	}
	return p
}

// roundoff is by how much rounding changes a number at most, relative to it.
var roundoff = map[device.DType]float64{device.Float64: 0x1p-53, device.Float32: 0x1p-24, device.Float16: 0x1p-11, device.BFloat16: 0x1p-8}

// draw is n elements of a rank's source. They are small enough for the sum or
// product over any number of ranks to be at most 255, which every type holds,
// and every part of the sum as well.
func draw(round uint64, cfg *Config, rank, ranks, n int) []float64 {
	base, spread := 0, 256 // numbers from base on, and how many of them
	share := 1             // one rank in so many has other numbers than base at an element
	if cfg.Collective.Reduces {
		switch cfg.Op {
		case comm.Sum, comm.Avg:
			share = (ranks + 254) / 255
			spread = 255/((ranks+share-1)/share) + 1
		case comm.Product:
			base, spread = 1, 2
			share = (ranks + 6) / 7
		}
	}
	random := rand.New(rand.NewPCG(round, uint64(rank)))
	values := make([]float64, n)
	for i := range values {
		v := base
		if i%share == rank%share {
			v += random.IntN(spread)
		}
		values[i] = float64(v)
	}
	return values
}

func combine(op comm.ReduceOp, a, b float64) float64 {
	switch op {
	case comm.Min:
		return min(a, b)
	case comm.Max:
		return max(a, b)
	case comm.Product:
		return a * b
	}
	return a + b
}

// encode is numbers as elements of the pattern's type.
func (p *pattern) encode(values []float64) []byte {
	table := make([]byte, len(values)*p.dt.Size())
	p.convert(device.NewTensor(device.HostBuffer(table, nil), p.dt, len(values)), device.HostTensor(values, device.Float64))
	return table
}

func (p *pattern) decode(table []byte) []float64 {
	values := make([]float64, len(table)/p.dt.Size())
	p.convert(device.HostTensor(values, device.Float64), device.NewTensor(device.HostBuffer(table, nil), p.dt, len(values)))
	return values
}

func (p *pattern) convert(dst, src device.Tensor) {
	if err := p.host.Kernels().Copy(p.host.Compute(), dst, src); err != nil {
		panic(err) // between tensors of one length, in host memory
	}
}

// fill enqueues a rank's source.
func (p *pattern) fill(dev device.Device, src device.Tensor, rank int) error {
	table := p.given[rank]
	for at := 0; at < src.Bytes(); at += len(table) {
		n := min(len(table), src.Bytes()-at)
		if err := dev.CopyIn(dev.Compute(), src.Buf.Slice(at, n), table[:n]); err != nil {
			return err
		}
	}
	return nil
}

// wrong counts the elements of dst that are not what pieces, one behind the
// other, say.
func (p *pattern) wrong(ctx context.Context, dev device.Device, dst device.Tensor, pieces []piece) (int, error) {
	wrong, at, size := 0, 0, p.dt.Size()
	got := make([]byte, period*size)
	for _, piece := range pieces {
		length := len(piece.table) / size
		for done := 0; done < piece.n; {
			from := (piece.first + done) % length
			n := min(length-from, piece.n-done)
			part := got[:n*size]
			if err := dev.CopyOut(ctx, dev.Compute(), part, dst.Range(at, at+n).Buf); err != nil {
				return 0, err
			}
			wrong += p.differing(part, piece.table[from*size:][:n*size])
			done, at = done+n, at+n
		}
	}
	return wrong, nil
}

// differing counts the elements of got that are not those of want, give or
// take the slack.
func (p *pattern) differing(got, want []byte) int {
	if bytes.Equal(got, want) {
		return 0
	}
	differing, w := 0, p.decode(want)
	for i, g := range p.decode(got) {
		if off := max(g-w[i], w[i]-g); !(off <= p.slack*w[i]) { // so that NaN differs
			differing++
		}
	}
	return differing
}
