// Package compare tells how far apart two trainings of one model have come: what the
// commands in test/parity and test/matrix share.
package compare

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/nn"
)

// Values reads one variable of each parameter, such as its gradient.
func Values(ctx context.Context, params []*nn.Parameter, of func(*nn.Parameter) *autograd.Variable) ([][]float64, error) {
	all := make([][]float64, len(params))
	for i, p := range params {
		var err error
		if all[i], err = of(p).Read(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Digest is the SHA-256 of values: equal where they are, to the bit.
func Digest(values [][]float64) string {
	sum := sha256.New()
	for _, v := range values {
		if err := binary.Write(sum, binary.LittleEndian, v); err != nil {
			panic(err) // a hash takes everything
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// Differing counts the ranks whose digest is not rank 0's.
func Differing(digests []string) int {
	n := 0
	for _, d := range digests {
		if d != digests[0] {
			n++
		}
	}
	return n
}

// Worst is the greatest ‖got - want‖/‖want‖ of a tensor, by Euclidean norm; NaN if
// one is.
func Worst[T float32 | float64](want [][]T, got [][]float64) float64 {
	greatest := 0.0
	for i := range want {
		var difference, norm float64
		for j := range want[i] {
			w := float64(want[i][j])
			d := got[i][j] - w
			difference += d * d
			norm += w * w
		}
		greatest = max(greatest, math.Sqrt(difference/norm))
	}
	return greatest
}
