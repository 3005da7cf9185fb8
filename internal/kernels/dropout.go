package kernels

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
)

// Dropout has the random masks of dropout.
type Dropout interface {
	// Dropout accumulates into dst x/(1-p) where the mask of probability p keeps an
	// element, and x·0 where it drops one. Element i is dropped by a function of (seed,
	// offset+i) alone: the package documentation defines it. It is its own derivative:
	// of the result's gradient it makes that of x. dst may be x when acc.Beta is 0.
	Dropout(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, p float64, seed, offset uint64) error
}

// DropoutThreshold is the random word below which an element is dropped with the
// probability p, and the factor of the others. It panics unless p is within 0 to 1.
func DropoutThreshold(p float64) (threshold uint64, factor float64) {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Errorf("Dropout: the probability is %v, want 0 to 1", p))
	}
	if p == 1 {
		return 1 << 32, 0
	}
	return uint64(math.Floor(p * (1 << 32))), 1 / (1 - p)
}
