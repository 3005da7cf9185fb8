package operand

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// NormSizes holds the sizes of a normalization: N samples, C channels, L positions.
type NormSizes struct{ N, C, L int }

// Rows returns the number of groups of a GroupNorm, and the number of elements in each.
func (z NormSizes) Rows(p kernels.Norm) (rows, cols int) {
	return z.N * p.Groups, z.C / max(p.Groups, 1) * z.L
}

func normSizes(op string, x device.Tensor) NormSizes {
	if len(x.Shape) != 3 {
		panic(&device.ShapeError{Op: op, A: x.Shape, B: device.Shape{0, 0, 0}})
	}
	return NormSizes{x.Shape[0], x.Shape[1], x.Shape[2]}
}

// checkStats checks that each tensor, unless it is the zero Tensor, has n numbers of x's StatType.
func checkStats(op string, x device.Tensor, n int, ts ...device.Tensor) {
	for _, t := range ts {
		if !t.IsZero() {
			checkType(op, t, kernels.StatType(x.DType))
			checkShape(op, device.Shape{n}, t)
		}
	}
}

// checkAffine checks a weight and a bias of c channels. Each may be the zero Tensor.
func checkAffine(op string, x device.Tensor, c int, ts ...device.Tensor) {
	for _, t := range ts {
		if !t.IsZero() {
			checkType(op, t, x.DType)
			checkShape(op, device.Shape{c}, t)
		}
	}
}

func (ts Types) group(op string, dst, mean, variance, x device.Tensor, p kernels.Norm) NormSizes {
	ts.Same(op, dst, x)
	z := normSizes(op, x)
	if p.Groups <= 0 || z.C%p.Groups != 0 {
		panic(&device.ShapeError{Op: op, A: x.Shape, B: device.Shape{p.Groups}})
	}
	checkStats(op, x, z.N*p.Groups, mean, variance)
	if p.Uncentered != mean.IsZero() || variance.IsZero() {
		panic(&device.DTypeError{Op: op, Got: mean.DType, Want: kernels.StatType(x.DType)})
	}
	return z
}

// GroupNorm checks the operands of a GroupNorm.
func (ts Types) GroupNorm(dst, mean, variance, x, weight, bias device.Tensor, p kernels.Norm) NormSizes {
	z := ts.group("GroupNorm", dst, mean, variance, x, p)
	checkAffine("GroupNorm", x, z.C, weight, bias)
	return z
}

// AddGroupNorm checks the operands of an AddGroupNorm.
func (ts Types) AddGroupNorm(dst, sum, mean, variance, x, y, weight, bias device.Tensor, p kernels.Norm) NormSizes {
	const op = "AddGroupNorm"
	ts.Same(op, sum, x, y)
	z := ts.group(op, dst, mean, variance, x, p)
	checkAffine(op, x, z.C, weight, bias)
	return z
}

// GroupNormGrad checks the operands of a GroupNormGrad.
func (ts Types) GroupNormGrad(to kernels.NormGrads, g, x, mean, variance, weight device.Tensor, p kernels.Norm) NormSizes {
	const op = "GroupNormGrad"
	z := ts.group(op, g, mean, variance, x, p)
	for _, t := range []device.Tensor{to.X, to.Addend} {
		if !t.IsZero() {
			ts.Same(op, g, t)
		}
	}
	checkAffine(op, x, z.C, weight, to.Weight, to.Bias)
	return z
}

// Moments checks the operands of a Moments.
func (ts Types) Moments(mean, variance, x device.Tensor) NormSizes {
	ts.Float("Moments", x)
	z := normSizes("Moments", x)
	checkChannels("Moments", x.DType, z.C, mean, variance)
	return z
}

// checkChannels checks that each tensor has one number of dt's StatType for each channel.
func checkChannels(op string, dt device.DType, c int, ts ...device.Tensor) {
	for _, t := range ts {
		checkType(op, t, kernels.StatType(dt))
		checkShape(op, device.Shape{c}, t)
	}
}

// MergeMoments checks the operands of a MergeMoments; parts is [r 2c+1].
func MergeMoments(mean, variance, count, parts device.Tensor) (r, c int) {
	const op = "MergeMoments"
	wide.Float(op, mean, variance, count, parts)
	checkScalar(op, count)
	r, cols := matrix(op, parts, false)
	c = mean.Len()
	checkShape(op, device.Shape{c}, mean, variance)
	if cols != 2*c+1 {
		panic(&device.ShapeError{Op: op, A: parts.Shape, B: device.Shape{r, 2*c + 1}})
	}
	return r, c
}

// TrackMoments checks the operands of a TrackMoments.
func TrackMoments(runningMean, runningVariance, batches, mean, variance, count device.Tensor) (c int) {
	const op = "TrackMoments"
	wide.Same(op, runningMean, runningVariance, mean, variance)
	wide.Float(op, runningMean, count)
	checkScalar(op, count)
	checkType(op, batches, device.Int64)
	checkScalar(op, batches)
	return runningMean.Len()
}
