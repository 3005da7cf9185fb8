package cpu

import "sync"

const (
	// grain is the minimum number of elements for a goroutine.
	grain = 1 << 15
	// chunk is the number of elements of a partial sum. It is constant, so that sums do not depend
	// on the number of threads.
	chunk = 1 << 14
	// tile is the number of elements of an intermediate result. It fits in the L1 cache.
	tile = 256
)

// each calls f for parts of [0, n), on several threads if the total cost justifies it. cost is the cost of
// an item in elements. The calls must be independent.
func (k *kernelSet) each(n, cost int, f func(lo, hi int)) {
	if n == 0 {
		return
	}
	parts := min(k.threads, n, n*cost/grain)
	if parts <= 1 {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	for p := 1; p < parts; p++ {
		wg.Go(func() { f(n*p/parts, n*(p+1)/parts) })
	}
	f(0, n/parts)
	wg.Wait()
}

// total returns the sum of f over [0, n), in chunks of size items. cost is the cost of an item in
// elements. The chunks are added in order.
func (k *kernelSet) total(n, size, cost int, f func(lo, hi int) float64) float64 {
	parts := make([]float64, (n+size-1)/size)
	k.each(len(parts), size*cost, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			parts[i] = f(i*size, min((i+1)*size, n))
		}
	})
	var s float64
	for _, p := range parts {
		s += p
	}
	return s
}
