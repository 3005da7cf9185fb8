package data

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// pack divides documents among rows of a length, so that few places are left: by best fit, the longest documents first,
// within windows of the documents in an order that depends only on the seed. It returns the documents of all rows, and
// the end of each row among them. No document is longer than a row.
func pack(lengths []int, length, window int, seed uint64) (documents, ends []int) {
	order := rand.New(rand.NewPCG(seed, 0)).Perm(len(lengths))
	var rows [][]int
	for part := range slices.Chunk(order, window) {
		slices.SortStableFunc(part, func(a, b int) int { return cmp.Compare(lengths[b], lengths[a]) })
		open := make([][]int, length+1)        // the rows of this window, by the number of free places
		has := make([]uint64, (length+1)/64+1) // the numbers of free places of which there are rows
		for _, document := range part {
			n := lengths[document]
			free := next(has, n)
			if free > length {
				free, rows = length, append(rows, nil)
				open[free] = append(open[free], len(rows)-1)
			}
			row := open[free][0]
			if open[free] = open[free][1:]; len(open[free]) == 0 {
				has[free/64] &^= 1 << (free % 64)
			}
			rows[row] = append(rows[row], document)
			left := free - n
			open[left] = append(open[left], row)
			has[left/64] |= 1 << (left % 64)
		}
	}
	for _, row := range rows {
		documents = append(documents, row...)
		ends = append(ends, len(documents))
	}
	return documents, ends
}

// next returns the first member of a set of bits that is at least n, or a number beyond the set.
func next(set []uint64, n int) int {
	word := set[n/64] >> (n % 64) << (n % 64)
	for i := n / 64; ; word = set[i] {
		if word != 0 {
			return i*64 + bits.TrailingZeros64(word)
		}
		if i++; i == len(set) {
			return i * 64
		}
	}
}
