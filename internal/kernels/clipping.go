package kernels

import (
	"math"

	"github.com/goddp/goddp/device"
)

// Clipping contains the kernels that clip the norm of several arrays as one vector. A device launches only a
// few kernels, regardless of the number of arrays. Every device supports all floating-point types; the
// arrays of one call may differ in type.
type Clipping interface {
	// PowerSum computes the scalar dst = Σ|x|^p over all elements of all xs. With an infinite p it is the
	// largest magnitude, 0 if there are no elements. dst and the arithmetic are Float64.
	PowerSum(s device.Stream, dst device.Tensor, p float64, xs ...device.Tensor) error
	// ScaleToNorm multiplies all elements of all xs by [NormFactor] of norm and limit. norm is the scalar
	// total^(1/p), or total with an infinite p. It is of Float32 or Float64; total is of Float64. If the
	// factor is 1, only norm is written.
	ScaleToNorm(s device.Stream, norm, total device.Tensor, p, limit float64, xs ...device.Tensor) error
}

// NormEpsilon is added to a norm, so that a norm of 0 does not divide by zero. It is the value of
// torch.nn.utils.clip_grad_norm_.
const NormEpsilon = 1e-6

// NormFactor returns the factor that makes a norm at most limit: limit/(norm + NormEpsilon), and at most 1.
// The factor of a NaN is NaN.
func NormFactor(norm, limit float64) float64 { return min(limit/(norm+NormEpsilon), 1) }

// PowerRoot returns total^(1/p), or total with an infinite p.
func PowerRoot(total, p float64) float64 {
	switch {
	case p == 1 || math.IsInf(p, 1):
		return total
	case p == 2:
		return math.Sqrt(total)
	}
	return math.Pow(total, 1/p)
}
