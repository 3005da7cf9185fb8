package cpu

import "sync"

const (
	// grain is the least number of elements that is worth a goroutine.
	grain = 1 << 15
	// chunk is the number of elements that a sum is cut at. It is fixed, so
	// that sums do not depend on the number of threads.
	chunk = 1 << 14
	// tile is the number of elements of intermediate results: they stay in
	// the first-level cache.
	tile = 256
)

// each covers 0 to n with calls of f, on several threads when n items of cost
// elements each are worth it. The calls must be independent of each other.
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

// total is the sum of f over 0 to n in chunks of size items of cost elements
// each, added in order.
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
