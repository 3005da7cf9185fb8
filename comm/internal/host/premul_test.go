package host_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
)

// A PreMulSum is bitwise equal to the Sum of products that each rank computed before. Factors,
// products and sums are rounded in the same way.
func TestPreMulSumEqualsSumOfProducts(t *testing.T) {
	notUnderRace(t)
	for _, name := range mainTransports() {
		t.Run(name, func(t *testing.T) {
			const n = 3
			groups := open(t, name, n)
			seq := uint64(0)
			for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
				for _, c := range []int{300, 9000} {
					for _, k := range []backend.Kind{backend.AllReduce, backend.Reduce, backend.ReduceScatter} {
						seq += 2
						err := each(groups, func(r int, g *backendtest.Rank) error { return premultiplied(g, dt, c, k, seq, r, n) })
						if err != nil {
							t.Fatalf("%v of %d %v: %v", k, c, dt, err)
						}
					}
				}
			}
		})
	}
}

// premultiplied runs both calls on one rank and compares the results.
func premultiplied(g *backendtest.Rank, dt device.DType, c int, k backend.Kind, seq uint64, r, n int) error {
	given := c
	if k == backend.ReduceScatter {
		given *= n
	}
	rng := rand.New(rand.NewPCG(uint64(r), seq))
	f := 1 / float64(3+r)
	one := private(g, dt, 1)
	backendtest.Put(one, 0, f)
	rounded := backendtest.Get(one, 0)
	src, scaled := shared(g, dt, given), shared(g, dt, given)
	for i := range given {
		backendtest.Put(src, i, rng.NormFloat64())
		// A product of two float32s is exact in float64. A product of two float64s is rounded here.
		backendtest.Put(scaled, i, backendtest.Get(src, i)*rounded)
	}
	before := bytes.Clone(src.Buf.Host())
	var results [2]device.Tensor
	for i, b := range []*backend.Call{
		{Seq: seq, Kind: k, Op: backend.PreMulSum, Factor: f, Src: src},
		{Seq: seq + 1, Kind: k, Op: backend.Sum, Src: scaled},
	} {
		if k != backend.Reduce || r == b.Root {
			b.Dst = shared(g, dt, c)
			results[i] = b.Dst
		}
		if err := call(g, b); err != nil {
			return err
		}
	}
	if !bytes.Equal(src.Buf.Host(), before) {
		return fmt.Errorf("rank %d: Src was changed", r)
	}
	for i := range results[0].Len() {
		if got, want := backendtest.Get(results[0], i), backendtest.Get(results[1], i); got != want {
			return fmt.Errorf("rank %d: element %d is %v, want %v", r, i, got, want)
		}
	}
	return nil
}
