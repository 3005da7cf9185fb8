package operand

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// BatchNorm checks the operands of a BatchNorm. Each tensor in the list same must have x's type and shape, or be absent.
func (ts Types) BatchNorm(op string, p kernels.BatchNorm, same ...device.Tensor) NormSizes {
	ts.Float(op, p.X)
	z := normSizes(op, p.X)
	for _, t := range same {
		if !t.IsZero() {
			ts.Same(op, p.X, t)
		}
	}
	checkChannels(op, p.X.DType, z.C, p.Mean, p.Variance)
	checkAffine(op, p.X, z.C, p.Weight, p.Bias)
	if !p.Mask.IsZero() {
		checkType(op, p.Mask, device.Uint8)
		checkShape(op, device.Shape{kernels.MaskBytes(p.X.Len())}, p.Mask)
	}
	return z
}

// BatchNormGradSums checks the operands of a BatchNormGradSums.
func (ts Types) BatchNormGradSums(sums, g device.Tensor, p kernels.BatchNorm) NormSizes {
	const op = "BatchNormGradSums"
	z := ts.BatchNorm(op, p, g)
	checkType(op, sums, kernels.StatType(p.X.DType))
	checkShape(op, device.Shape{2, z.C}, sums)
	return z
}

// BatchNormGrad checks the operands of a BatchNormGrad.
func (ts Types) BatchNormGrad(to kernels.BatchNormGrads, g, sums, count device.Tensor, p kernels.BatchNorm) NormSizes {
	const op = "BatchNormGrad"
	z := ts.BatchNorm(op, p, g, to.X, to.Residual)
	if !sums.IsZero() {
		checkType(op, sums, kernels.StatType(p.X.DType))
		checkShape(op, device.Shape{2, z.C}, sums)
		checkType(op, count, kernels.StatType(p.X.DType))
		checkScalar(op, count)
	}
	return z
}
