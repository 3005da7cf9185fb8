package generate

import (
	"math/rand/v2"
	"slices"
)

// Choices returns how often each token is chosen after the tokens seen, and one that cannot be chosen.
func Choices(o *Options, seen []int, logits []float32, n int) []int {
	counts := make([]int, len(logits))
	r := &row{o: o, random: rand.New(rand.NewPCG(1, 1)), tokens: append(slices.Clone(seen), len(logits))}
	for range n {
		counts[r.choose(slices.Clone(logits))]++
	}
	return counts
}
