package collective

import (
	"bytes"
	"context"
	"math/bits"
	"math/rand/v2"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// period is the number of elements after which a pattern repeats. It is prime, so that the check
// detects elements that are off by a round number.
const period = 65521

// pattern is the contents of the ranks' sources in one round, and the expected results. A rank's source
// repeats the rank's table: element i of the source is element i%period of the table.
type pattern struct {
	dt        device.DType
	given     [][]byte // tables of the sources, by rank
	reduced   []byte   // table of the reduction of all sources
	tolerance float64  // allowed error of a reduction, relative to its value
	host      device.Device
}

// piece is the expected content of a range of a rank's dst: n elements of a table, beginning at index first.
type piece struct {
	table    []byte
	first, n int
}

// newPattern returns the pattern of a round, for sources with the given number of elements. Rounds
// have different patterns, so that the check detects results of an earlier round. host is a device
// whose memory is host memory.
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
	p.reduced = p.encode(reduced) // rounds averages of integers towards zero, like the group
	if cfg.Op == comm.Avg && bits.OnesCount(uint(ranks)) > 1 {
		// 1/ranks, each product with it, and each sum are rounded.
		p.tolerance = float64(ranks+2) * roundoff[cfg.DType]
	}
	return p
}

// roundoff is the largest relative error of rounding to a type.
var roundoff = map[device.DType]float64{device.Float64: 0x1p-53, device.Float32: 0x1p-24, device.Float16: 0x1p-11, device.BFloat16: 0x1p-8}

// draw returns n elements of a rank's source. They are small enough that the sum and the product
// over all ranks, and all partial results, are at most 255, which every type can represent.
func draw(round uint64, cfg *Config, rank, ranks, n int) []float64 {
	base, spread := 0, 256 // values from base to base+spread-1
	share := 1             // at each element only one of share ranks has a value other than base
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

// encode returns a table of the pattern's type.
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
		panic(err) // cannot happen: the tensors have equal lengths and are in host memory
	}
}

// fill enqueues the copy of a rank's table to its source.
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

// wrong returns the number of elements of dst that differ from pieces, which follow each other.
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

// differing returns the number of elements of got that differ from want by more than the tolerance.
func (p *pattern) differing(got, want []byte) int {
	if bytes.Equal(got, want) {
		return 0
	}
	differing, w := 0, p.decode(want)
	for i, g := range p.decode(got) {
		if off := max(g-w[i], w[i]-g); !(off <= p.tolerance*w[i]) { // true for NaN
			differing++
		}
	}
	return differing
}
