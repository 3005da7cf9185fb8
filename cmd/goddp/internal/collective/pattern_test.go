package collective

import (
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// For any number of ranks, sums and products fit into a byte, and every rank contributes to them.
func TestReductionsAreExactInEveryType(t *testing.T) {
	const n = 2000
	for _, op := range []comm.ReduceOp{comm.Sum, comm.Product} {
		cfg := &Config{Collective: collective(t, "all_reduce"), Op: op}
		for _, ranks := range []int{1, 2, 7, 8, 254, 255, 256, 700} {
			total := make([]float64, n)
			for r := range ranks {
				values := draw(1, cfg, r, ranks, n)
				if slices.Min(values) == slices.Max(values) {
					t.Errorf("%v of %d ranks: rank %d has only %v", op, ranks, r, values[0])
				}
				for i, v := range values {
					if r == 0 {
						total[i] = v
					} else {
						total[i] = combine(op, total[i], v)
					}
				}
			}
			if most := slices.Max(total); most > 255 {
				t.Errorf("%v of %d ranks is up to %v", op, ranks, most)
			}
		}
	}
}

func TestDifferingCountsElements(t *testing.T) {
	host := cpu.New(&cpu.Options{BLAS: cpu.Gonum})
	defer host.Close()
	p := &pattern{host: host, dt: device.Float32}
	want := []float64{0, 1, 100, 255}
	for _, c := range []struct {
		tolerance float64
		got       []float64
		differ    int
	}{
		{0, want, 0},
		{0, []float64{0, 1, 101, 255}, 1},
		{0, []float64{1, 2, 101, 256}, 4},
		{0, []float64{0, math.NaN(), 100, math.Inf(1)}, 2},
		{0.01, []float64{0, 1.005, 99.5, 257}, 0},
		{0.01, []float64{1e-9, 1.02, 98, math.NaN()}, 4},
	} {
		p.tolerance = c.tolerance
		if got := p.differing(p.encode(c.got), p.encode(want)); got != c.differ {
			t.Errorf("%v and %v differ in %d with a tolerance of %v, want %d", c.got, want, got, c.tolerance, c.differ)
		}
	}
}
