package kernels

import (
	"fmt"
	"math"
)

// UnaryOp is an elementwise function of one operand. Functions without parameters are variables of this
// package, which must not be modified; Pow, Clamp and others return functions with parameters. UnaryOps
// are comparable.
type UnaryOp struct {
	Func UnaryFunc
	A, B float64 // the function's parameters, if it has any
}

// UnaryFunc identifies a function of one operand.
type UnaryFunc uint8

// The functions of one operand, with their derivatives at points where they are not smooth. All
// functions and their derivatives are NaN at NaN, except x⁰, which is 1 with derivative 0 everywhere.
const (
	FuncNeg UnaryFunc = iota
	FuncExp
	FuncLog
	FuncSqrt
	FuncTanh
	FuncSigmoid
	FuncReLU     // derivative 0 at 0
	FuncGELU     // x·Φ(x), Φ the normal distribution function
	FuncGELUTanh // x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2
	FuncAbs      // derivative 0 at 0
	FuncRsqrt    // 1/√x
	FuncSin
	FuncCos
	FuncSiLU      // x/(1+e^-x)
	FuncAddScalar // x + A
	FuncPow       // x to the power of A
	FuncClamp     // A below A, B above B, else x; derivative 1 at A and at B; B everywhere if A > B
	FuncLeakyReLU // x above 0, else A·x; derivative A at 0
	FuncELU       // x above 0, else A·(e^x - 1)
	FuncSoftplus  // log(1 + e^(A·x))/A; x where A·x > B
)

// The elementwise functions without parameters.
var (
	Neg      = UnaryOp{Func: FuncNeg}
	Exp      = UnaryOp{Func: FuncExp}
	Log      = UnaryOp{Func: FuncLog}
	Sqrt     = UnaryOp{Func: FuncSqrt}
	Tanh     = UnaryOp{Func: FuncTanh}
	Sigmoid  = UnaryOp{Func: FuncSigmoid}
	ReLU     = UnaryOp{Func: FuncReLU}
	GELU     = UnaryOp{Func: FuncGELU}
	GELUTanh = UnaryOp{Func: FuncGELUTanh}
	Abs      = UnaryOp{Func: FuncAbs}
	Rsqrt    = UnaryOp{Func: FuncRsqrt}
	Sin      = UnaryOp{Func: FuncSin}
	Cos      = UnaryOp{Func: FuncCos}
	SiLU     = UnaryOp{Func: FuncSiLU}
)

// AddScalar returns the function x + a.
func AddScalar(a float64) UnaryOp { return UnaryOp{Func: FuncAddScalar, A: a} }

// Pow returns the function x to the power of exponent.
func Pow(exponent float64) UnaryOp { return UnaryOp{Func: FuncPow, A: exponent} }

// Clamp returns the function that limits x to the range from lo to hi: see [FuncClamp]. A bound may be infinite.
func Clamp(lo, hi float64) UnaryOp {
	if math.IsNaN(lo) || math.IsNaN(hi) {
		panic(fmt.Errorf("Clamp: bounds %v and %v, want no NaN", lo, hi))
	}
	return UnaryOp{Func: FuncClamp, A: lo, B: hi}
}

// LeakyReLU returns the function x for x > 0, slope·x otherwise.
func LeakyReLU(slope float64) UnaryOp { return UnaryOp{Func: FuncLeakyReLU, A: slope} }

// ELU returns the function x for x > 0, alpha·(e^x - 1) otherwise.
func ELU(alpha float64) UnaryOp { return UnaryOp{Func: FuncELU, A: alpha} }

// Softplus returns the function log(1 + e^(beta·x))/beta, and x where beta·x > threshold.
func Softplus(beta, threshold float64) UnaryOp {
	return UnaryOp{Func: FuncSoftplus, A: beta, B: threshold}
}

// Operand identifies the operand from which a derivative is computed.
type Operand uint8

// The operands of a derivative.
const (
	GivenNone Operand = iota // none: the derivative is constant
	GivenX                   // x
	GivenY                   // y = op(x)
)

// Given returns the operand from which o's derivative is computed.
func (o UnaryOp) Given() Operand {
	switch o.Func {
	case FuncNeg, FuncAddScalar:
		return GivenNone
	case FuncExp, FuncSqrt, FuncReLU, FuncRsqrt:
		return GivenY
	case FuncPow:
		if o.A == 0 || o.A == 1 {
			return GivenNone
		}
	}
	return GivenX
}

func (o UnaryOp) String() string {
	return [...]string{
		"Neg", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "ReLU", "GELU", "GELUTanh", "Abs", "Rsqrt", "Sin", "Cos", "SiLU",
		"AddScalar", "Pow", "Clamp", "LeakyReLU", "ELU", "Softplus",
	}[o.Func]
}
