package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

func (k *kernelSet) Orthonormalize(_ device.Stream, x, substitute device.Tensor) error {
	rows, n := operand.Orthonormalize(x, substitute)
	pick(x, orthonormalize[float32], orthonormalize[float64])(k, x, substitute, rows, n)
	return nil
}

func orthonormalize[T float](k *kernelSet, x, substitute device.Tensor, rows, n int) {
	all, others := device.Elements[T](x), device.Elements[T](substitute)
	for i := range rows {
		row := all[i*n : (i+1)*n]
		if independent(k, row, all[:i*n]) {
			continue
		}
		copy(row, others[i*n:])
		if !independent(k, row, all[:i*n]) {
			clear(row)
		}
	}
}

// least is the minimum fraction of a row's squared norm that must remain after the subtraction.
const least = 0x1p-28

// independent subtracts from row its projections on the earlier rows, and scales the rest to norm 1. It returns
// false if too little of row is left.
func independent[T float](k *kernelSet, row, before []T) bool {
	whole := dot(k, row, row)
	for range 2 {
		for b := before; len(b) > 0; b = b[len(row):] {
			accumulate(row, device.Accum{Alpha: -dot(k, row, b[:len(row)]), Beta: 1}, b)
		}
	}
	left := dot(k, row, row)
	if !(left > whole*least) { // also true if a norm is NaN or infinite
		return false
	}
	scale := T(1 / math.Sqrt(left))
	for i := range row {
		row[i] *= scale
	}
	return true
}

func dot[T float](k *kernelSet, a, b []T) float64 {
	return k.total(len(a), chunk, 1, func(lo, hi int) (s float64) {
		for i, v := range a[lo:hi] {
			s += float64(v) * float64(b[lo+i])
		}
		return s
	})
}
