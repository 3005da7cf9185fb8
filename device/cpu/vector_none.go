//go:build !(cgo && unix && (amd64 || arm64))

package cpu

import (
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// These functions do nothing, because vectors need cgo.

func vectorUnary(f kernels.UnaryFunc, dst, x []float32) bool            { return false }
func vectorUnaryGrad(f kernels.UnaryFunc, dst, g, x []float32) bool     { return false }
func vectorSwiGLU(dst, gate, up []float32) bool                         { return false }
func vectorSwiGLUGate(dst, g, gate, up []float32) bool                  { return false }
func vectorExps(dst, x []float32, shift float64) (sum float64, ok bool) { return 0, false }
func vectorMaxPool(z operand.PoolSizes, w *kernels.Window, before, after int, dst []float32, at []int32, x []float32, lo, hi int) bool {
	return false
}
func vectorReLU(dst, x []float32) bool                                 { return false }
func vectorReLUGrad(dst, g, y []float32) bool                          { return false }
func vectorSum(x []float32) (sum float64, ok bool)                     { return 0, false }
func vectorAddRows(sums []float64, x []float32, stride, rows int) bool { return false }
func vectorDropout(dst, x []float32, factor float32, threshold, seed, offset uint64) bool {
	return false
}
func vectorAdamW(r *adamWRule[float32], w, g, m, v []float32) bool { return false }
func vectorLargest(x []float32) (most float32, ok bool)            { return 0, false }
