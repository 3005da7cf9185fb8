package kernels

import (
	"fmt"
	"math"
)

// UnaryOp is an elementwise function of one operand. Those without parameters are
// variables of this package, which a program must not set; Pow, Clamp and others make
// those with parameters. UnaryOps are comparable.
type UnaryOp struct {
	Func UnaryFunc
	A, B float64 // the function's parameters, where it has some
}

// UnaryFunc names a function of one operand.
type UnaryFunc uint8

// The functions of one operand, with what their derivatives are where they are not
// smooth. All of them, and their derivatives, are NaN at NaN, but for x⁰, which is 1
// with derivative 0 everywhere.
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

// AddScalar is x + a.
func AddScalar(a float64) UnaryOp { return UnaryOp{Func: FuncAddScalar, A: a} }

// Pow is x to the power of exponent.
func Pow(exponent float64) UnaryOp { return UnaryOp{Func: FuncPow, A: exponent} }

// Clamp is x within lo to hi: see [FuncClamp]. An infinite bound is none.
func Clamp(lo, hi float64) UnaryOp {
	if math.IsNaN(lo) || math.IsNaN(hi) {
		panic(fmt.Errorf("Clamp: the bounds are %v and %v", lo, hi))
	}
	return UnaryOp{Func: FuncClamp, A: lo, B: hi}
}

// LeakyReLU is x above 0, and slope·x below.
func LeakyReLU(slope float64) UnaryOp { return UnaryOp{Func: FuncLeakyReLU, A: slope} }

// ELU is x above 0, and alpha·(e^x - 1) below.
func ELU(alpha float64) UnaryOp { return UnaryOp{Func: FuncELU, A: alpha} }

// Softplus is log(1 + e^(beta·x))/beta, and x where beta·x is above threshold.
func Softplus(beta, threshold float64) UnaryOp {
	return UnaryOp{Func: FuncSoftplus, A: beta, B: threshold}
}

// Operand names what a derivative is computed from.
type Operand uint8

// The operands of a derivative.
const (
	GivenNone Operand = iota // it is constant
	GivenX                   // from x
	GivenY                   // from y = op(x)
)

// Given is what op's derivative is computed from.
func (o UnaryOp) Given() Operand {
	switch o.Func {
	case FuncNeg, FuncAddScalar:
		return GivenNone
	case FuncExp, FuncSqrt, FuncTanh, FuncSigmoid, FuncReLU, FuncRsqrt:
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
