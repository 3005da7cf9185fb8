package generate

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"unsafe"
)

// row is a row of tokens that is being continued.
type row struct {
	o      *Options
	random *rand.Rand
	tokens []int // with the prompt
	prompt int   // the prompt's length
	isDone bool

	all []candidate // reused by candidates
}

// isFull reports whether the row ends with so many more tokens because of its length.
func (r *row) isFull(more, positions int) bool {
	n := len(r.tokens) + more
	return n-r.prompt == r.o.MaxTokens || n > positions
}

// sample chooses the next token of each row from float32 logits, of which each row has width bytes.
func sample(rows []*row, logits []byte, width int) []int {
	chosen := make([]int, len(rows))
	var wg sync.WaitGroup
	for i, r := range rows {
		if r.isDone {
			continue
		}
		x := unsafe.Slice((*float32)(unsafe.Pointer(&logits[i*width])), width/4)
		if v := r.o.Vocab; v > 0 && v < len(x) {
			x = x[:v]
		}
		wg.Go(func() { chosen[i] = r.choose(x) })
	}
	wg.Wait()
	return chosen
}

// choose chooses a token. It changes x.
func (r *row) choose(x []float32) int {
	if p := float32(r.o.penalty()); p != 1 {
		seen := map[int]bool{}
		for _, id := range r.tokens {
			if seen[id] || id >= len(x) { // the prompt may have tokens from Vocab on
				continue
			}
			seen[id] = true
			if x[id] > 0 {
				x[id] /= p
			} else {
				x[id] *= p
			}
		}
	}
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	if r.o.Temperature <= 0 {
		return best
	}
	order, total := r.candidates(x, func(i int32) float64 { return math.Exp((float64(x[i]) - float64(x[best])) / r.o.Temperature) })
	at := r.random.Float64() * total
	for _, c := range order {
		if at -= c.weight; at < 0 {
			return int(c.id)
		}
	}
	return int(order[0].id)
}

// candidate is a token that may be chosen, with a probability in proportion to its weight.
type candidate struct {
	id     int32
	weight float64
}

// candidates returns the tokens to choose from by TopK and TopP, and the sum of their weights. weight returns 1 for the
// most probable token.
func (r *row) candidates(x []float32, weight func(id int32) float64) (all []candidate, total float64) {
	all = r.all[:0]
	k, p := r.o.TopK, r.o.TopP
	isCut := p > 0 && p < 1
	if k > 0 && k < len(x) {
		for _, id := range largest(x, k) {
			all = append(all, candidate{id, weight(id)})
		}
	} else {
		for i := range x {
			all = append(all, candidate{int32(i), weight(int32(i))})
		}
	}
	r.all = all
	for _, c := range all {
		total += c.weight
	}
	if !isCut {
		return all, total
	}
	// Tokens of small weight are sorted only if the others do not add up to p.
	const small = 1e-5
	likely := all[:0:0]
	sum := 0.0
	for _, c := range all {
		if c.weight >= small {
			likely = append(likely, c)
			sum += c.weight
		}
	}
	if sum < p*total {
		likely = all
	}
	slices.SortFunc(likely, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.id, b.id))
	})
	sum = 0
	for n, c := range likely {
		if sum += c.weight; sum >= p*total {
			return likely[:n+1], sum
		}
	}
	return likely, sum
}

// largest returns the positions of the k largest numbers of x, in no order. Of equal numbers it prefers the first.
func largest(x []float32, k int) []int32 {
	h := &smallestFirst{x: x}
	for i := range x {
		switch {
		case len(h.at) < k:
			heap.Push(h, int32(i))
		case x[i] > x[h.at[0]]:
			h.at[0] = int32(i)
			heap.Fix(h, 0)
		}
	}
	return h.at
}

// smallestFirst is a heap of positions in x.
type smallestFirst struct {
	x  []float32
	at []int32
}

func (h *smallestFirst) Len() int { return len(h.at) }
func (h *smallestFirst) Less(i, j int) bool {
	return h.x[h.at[i]] < h.x[h.at[j]] || h.x[h.at[i]] == h.x[h.at[j]] && h.at[i] > h.at[j]
}
func (h *smallestFirst) Swap(i, j int) { h.at[i], h.at[j] = h.at[j], h.at[i] }
func (h *smallestFirst) Push(i any)    { h.at = append(h.at, i.(int32)) }
func (h *smallestFirst) Pop() any      { panic("generate: nothing is taken from the heap") }
