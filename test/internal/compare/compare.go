// Package compare compares the results of two trainings of one model. test/parity and test/matrix use it.
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

// Values reads one variable of each parameter: of selects it, such as (*nn.Parameter).Grad.
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

// Digest returns the SHA-256 of values. Two digests are equal if all bits of the values are.
func Digest(values [][]float64) string {
	sum := sha256.New()
	for _, v := range values {
		if err := binary.Write(sum, binary.LittleEndian, v); err != nil {
			panic(err) // cannot happen: writing to a hash never fails
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// Differing counts the ranks whose digest differs from rank 0's.
func Differing(digests []string) int {
	n := 0
	for _, d := range digests {
		if d != digests[0] {
			n++
		}
	}
	return n
}

// Worst returns the largest ‖got - want‖/‖want‖ of any tensor, by Euclidean norm. It returns NaN if that
// of any tensor is NaN.
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
