package kernels

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
)

// Dropout contains the dropout kernel.
type Dropout interface {
	// Dropout accumulates into dst x/(1-p) for kept elements and x·0 for dropped elements; p is the
	// probability of dropping. Whether element i is dropped depends only on number at+i of the random
	// sequence: see the package documentation. The same call, with the gradient of the result as x,
	// computes the gradient of x. dst may be x if acc.Beta is 0.
	Dropout(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, p float64, at Position) error
}

// Position is a position in a random sequence: Offset plus, if From is present, its value when the
// kernel runs. So an operation in a graph can continue the sequence in each launch. Seed selects the
// sequence.
type Position struct {
	Seed, Offset uint64
	From         device.Tensor // a scalar of Int64 in device memory, or absent; the sum wraps
}

// DropoutThreshold returns the threshold of the random word below which an element is dropped with
// probability p, and the factor of the kept elements. It panics unless 0 ≤ p ≤ 1.
func DropoutThreshold(p float64) (threshold uint64, factor float64) {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Errorf("Dropout: probability %v, want 0 to 1", p))
	}
	if p == 1 {
		return 1 << 32, 0
	}
	return uint64(math.Floor(p * (1 << 32))), 1 / (1 - p)
}
