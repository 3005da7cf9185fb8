//go:build !(cgo && unix && (amd64 || arm64))

package cpu

import "github.com/goddp/goddp/internal/kernels"

// These functions do nothing, because vectors need cgo.

func vectorUnary(f kernels.UnaryFunc, dst, x []float32) bool            { return false }
func vectorUnaryGrad(f kernels.UnaryFunc, dst, g, x []float32) bool     { return false }
func vectorSwiGLU(dst, gate, up []float32) bool                         { return false }
func vectorSwiGLUGate(dst, g, gate, up []float32) bool                  { return false }
func vectorExps(dst, x []float32, shift float64) (sum float64, ok bool) { return 0, false }
func vectorAdamW(r *adamWRule[float32], w, g, m, v []float32) bool      { return false }
func vectorLargest(x []float32) (most float32, ok bool)                 { return 0, false }
