package devicetest

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// checkMisfits checks that operands that do not fit panic, with an error of the right type.
func checkMisfits(r *rig) {
	t := func(shape ...int) device.Tensor { return r.put(newArray(shape...)).Tensor }
	of := func(dt device.DType, shape ...int) device.Tensor {
		return r.place(dt, shape, make([]byte, device.Shape(shape).Len()*dt.Size())).Tensor
	}
	k, s, one := r.k, r.s, device.Store
	labels := of(device.Int64, 4)
	for name, call := range map[string]func() error{
		"Copy of other length":        func() error { return k.Copy(s, t(3), t(4)) },
		"Compare to another shape":    func() error { return k.Compare(s, kernels.Less, of(device.Uint8, 3), t(3), t(4)) },
		"MaskedCopy of other shape":   func() error { return k.MaskedCopy(s, t(3), of(device.Uint8, 4), t(3)) },
		"FindExtreme of nothing":      func() error { return k.FindExtreme(s, kernels.Largest, t(2, 3), device.Tensor{}, t(2, 0, 3)) },
		"FindExtreme to other places": func() error { return k.FindExtreme(s, kernels.Largest, t(2, 3), device.Tensor{}, t(2, 4, 2)) },
		"Gather with few indices":     func() error { return k.Gather(s, t(1, 3, 2), t(1, 5, 2), labels) },
		"Gather from other columns":   func() error { return k.Gather(s, t(1, 4, 2), t(1, 5, 3), labels) },
		"ScatterAdd to a matrix":      func() error { return k.ScatterAdd(s, t(5, 2), one, t(1, 4, 2), labels, -1) },
		"CopyStrided with few strides": func() error {
			return k.CopyStrided(s, device.Shape{3}, t(3), kernels.Layout{}, one, t(3), kernels.Dense(device.Shape{3}))
		},
		"Axpby of other shape":            func() error { return k.Axpby(s, t(3), one, t(4)) },
		"Unary of other shape":            func() error { return k.Unary(s, kernels.Exp, t(3), t(4)) },
		"UnaryGrad with other g":          func() error { return k.UnaryGrad(s, kernels.Exp, t(3), one, t(4), t(3), t(3)) },
		"UnaryGrad with other y":          func() error { return k.UnaryGrad(s, kernels.Exp, t(3), one, t(3), t(3), t(4)) },
		"UnaryGrad with other x":          func() error { return k.UnaryGrad(s, kernels.Log, t(3), one, t(3), t(4), t(3)) },
		"ScaleBy of other shape":          func() error { return k.ScaleBy(s, t(3), one, t(), t(4)) },
		"ScaleBy two factors":             func() error { return k.ScaleBy(s, t(3), one, t(2), t(3)) },
		"Binary with x too long":          func() error { return k.Binary(s, kernels.Add, t(3), t(4), t(3)) },
		"Binary with y of more axes":      func() error { return k.Binary(s, kernels.Add, t(3), t(3), t(1, 3)) },
		"Binary with dst too small":       func() error { return k.Binary(s, kernels.Add, t(1), t(1), t(3)) },
		"Sum to another shape":            func() error { return k.Sum(s, t(4), one, t(5, 3)) },
		"Sum to a larger shape":           func() error { return k.Sum(s, t(2, 3), one, t(3)) },
		"MatMul with other k":             func() error { return k.MatMul(s, t(2, 4), one, t(2, 3), false, t(2, 4), false) },
		"MatMul with other k, transposed": func() error { return k.MatMul(s, t(2, 4), one, t(2, 3), true, t(3, 4), false) },
		"MatMul to another m":             func() error { return k.MatMul(s, t(3, 4), one, t(2, 3), false, t(3, 4), false) },
		"MatMul to another n":             func() error { return k.MatMul(s, t(2, 3), one, t(2, 3), false, t(3, 4), false) },
		"MatMul of a vector":              func() error { return k.MatMul(s, t(2, 4), one, t(2, 3), false, t(3), false) },
		"MatMul of other batches":         func() error { return k.MatMul(s, t(2, 2, 4), one, t(2, 2, 3), false, t(3, 3, 4), false) },
		"MatMul to a smaller batch":       func() error { return k.MatMul(s, t(2, 4), one, t(2, 2, 3), false, t(3, 4), false) },
		"Linear with other k":             func() error { return k.Linear(s, t(2, 4), t(2, 3), t(4, 2), device.Tensor{}, 0) },
		"Linear to another shape":         func() error { return k.Linear(s, t(2, 5), t(2, 3), t(4, 3), device.Tensor{}, 0) },
		"Linear with other bias":          func() error { return k.Linear(s, t(2, 4), t(2, 3), t(4, 3), t(2), 0) },
		"LinearGrad with other rows":      func() error { return k.LinearGrad(s, t(4, 3), one, t(4), one, t(2, 4), t(3, 3)) },
		"LinearGrad to another weight":    func() error { return k.LinearGrad(s, t(3, 4), one, t(4), one, t(2, 4), t(2, 3)) },
		"LinearGrad to another bias":      func() error { return k.LinearGrad(s, t(4, 3), one, t(3), one, t(2, 4), t(2, 3)) },
		"PrepareLinearGrad of other y":    func() error { return k.PrepareLinearGrad(s, t(2, 5), t(2, 3), t(4, 3), t(4)) },
		"MSE of other shapes":             func() error { return k.MSE(s, t(), t(3), t(4)) },
		"MSE to more than a number":       func() error { return k.MSE(s, t(3), t(3), t(3)) },
		"MSEGrad to another shape":        func() error { return k.MSEGrad(s, t(4), one, t(), t(3), t(3)) },
		"MSEGrad with more than a number": func() error { return k.MSEGrad(s, t(3), one, t(3), t(3), t(3)) },
		"CrossEntropy with few labels":    func() error { return k.CrossEntropy(s, t(), of(device.Float64, 2, 5), t(5, 2), labels) },
		"CrossEntropy with other rows":    func() error { return k.CrossEntropy(s, t(), of(device.Float64, 2, 3), t(4, 2), labels) },
		"CrossEntropy of a vector":        func() error { return k.CrossEntropy(s, t(), of(device.Float64, 2, 4), t(4), labels) },
		"CrossEntropyGrad with other rows": func() error {
			return k.CrossEntropyGrad(s, t(5, 2), one, t(), of(device.Float64, 2, 5), t(5, 2), labels)
		},
		"CrossEntropyInPlace with few losses": func() error { return k.CrossEntropyInPlace(s, t(3), t(4, 2), labels) },
		"SelectLabels of few labels": func() error {
			return k.SelectLabels(s, of(device.Int64, 5), of(device.Int64, 5), t(2), labels, 0)
		},
		"Softmax to another shape": func() error { return k.Softmax(s, t(3, 2), t(2, 3), 1, false) },
		"Dropout to another shape": func() error { return k.Dropout(s, t(3), one, t(4), 0.5, kernels.Position{}) },
		"Softmax along no axis":    func() error { return k.Softmax(s, t(2, 3), t(2, 3), 2, false) },
		"SoftmaxGrad with other g": func() error { return k.SoftmaxGrad(s, t(2, 3), one, t(3), t(2, 3), 1, false) },
		"SGD with other gradient":  func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: t(4), LR: 1}) },
		"SGD with other velocity":  func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: t(3), Velocity: t(4), Momentum: 1}) },
		"SGD with other master": func() error {
			return k.SGD(s, kernels.SGDStep{Param: of(device.BFloat16, 3), Grad: of(device.BFloat16, 3), Master: t(4)})
		},
		"AdamW with other moment": func() error {
			return k.AdamW(s, kernels.AdamWStep{Param: t(3), Grad: t(3), Mean: t(3), Variance: t(4), Step: 1})
		},
		"PowerSum to 2 sums":                    func() error { return k.PowerSum(s, of(device.Float64, 2), 2, t(3)) },
		"ScaleToNorm to 2 norms":                func() error { return k.ScaleToNorm(s, t(2), of(device.Float64), 2, 1, t(3)) },
		"NonFinite to two flags":                func() error { return k.NonFinite(s, of(device.Uint8, 2), t(3)) },
		"Hash to two numbers":                   func() error { return k.Hash(s, of(device.Int64, 2), t(3)) },
		"Quantize to part of a block":           func() error { return k.Quantize(s, of(device.Uint8, 7), t(3)) },
		"Dequantize of a block more":            func() error { return k.Dequantize(s, t(3), one, of(device.Uint8, 2*device.Align)) },
		"Orthonormalize of a vector":            func() error { return k.Orthonormalize(s, t(3), t(3)) },
		"Orthonormalize of more rows than room": func() error { return k.Orthonormalize(s, t(3, 2), t(3, 2)) },
		"Orthonormalize with few spares":        func() error { return k.Orthonormalize(s, t(2, 3), t(1, 3)) },
	} {
		misfit[*device.ShapeError](r, name, call)
	}
	double := of(device.Float64, 3)
	for name, call := range map[string]func() error{
		"Fill of nothing":          func() error { return k.Fill(s, device.Tensor{}, 1) },
		"Copy of nothing":          func() error { return k.Copy(s, t(), device.Tensor{}) },
		"Compare to real numbers":  func() error { return k.Compare(s, kernels.Less, t(3), t(3), t(3)) },
		"Compare of two types":     func() error { return k.Compare(s, kernels.Less, of(device.Uint8, 3), t(3), double) },
		"MaskedCopy by numbers":    func() error { return k.MaskedCopy(s, t(3), t(3), t(3)) },
		"MaskedCopy of other type": func() error { return k.MaskedCopy(s, t(3), of(device.Uint8, 3), double) },
		"FindExtreme of integers": func() error {
			return k.FindExtreme(s, kernels.Largest, device.Tensor{}, of(device.Int64, 1, 1), of(device.Int64, 1, 1, 1))
		},
		"Gather by real numbers":     func() error { return k.Gather(s, t(1, 4, 2), t(1, 5, 2), t(4)) },
		"ScatterAdd to another type": func() error { return k.ScatterAdd(s, double.Reshape(1, 3, 1), one, t(1, 4, 1), labels, -1) },
		"CopyStrided of other type": func() error {
			box := device.Shape{3}
			return k.CopyStrided(s, box, t(3), kernels.Dense(box), one, double, kernels.Dense(box))
		},
		"CopyStrided that adds integers": func() error {
			box, x := device.Shape{3}, of(device.Int64, 3)
			return k.CopyStrided(s, box, x, kernels.Dense(box), device.Accum{Alpha: 1, Beta: 1}, x, kernels.Dense(box))
		},
		"Axpby of other type":             func() error { return k.Axpby(s, t(3), one, double) },
		"Axpby of integers":               func() error { return k.Axpby(s, of(device.Int32, 3), one, of(device.Int32, 3)) },
		"Unary of other type":             func() error { return k.Unary(s, kernels.Exp, t(3), double) },
		"UnaryGrad without y":             func() error { return k.UnaryGrad(s, kernels.Exp, t(3), one, t(3), t(3), device.Tensor{}) },
		"UnaryGrad without x":             func() error { return k.UnaryGrad(s, kernels.Log, t(3), one, t(3), device.Tensor{}, t(3)) },
		"Binary of two types":             func() error { return k.Binary(s, kernels.Add, t(3), t(3), double) },
		"Sum of other type":               func() error { return k.Sum(s, t(3), one, double) },
		"MatMul of two types":             func() error { return k.MatMul(s, t(1, 1), one, t(1, 3), false, double.Reshape(3, 1), false) },
		"Linear with bias of its own":     func() error { return k.Linear(s, t(1, 3), t(1, 2), t(3, 2), double, 0) },
		"LinearGrad to bias of its own":   func() error { return k.LinearGrad(s, t(3, 2), one, double, one, t(1, 3), t(1, 2)) },
		"Softmax of two types":            func() error { return k.Softmax(s, t(3), double, 0, false) },
		"MSE of two types":                func() error { return k.MSE(s, t(), t(3), double) },
		"MSEGrad with g of its own":       func() error { return k.MSEGrad(s, t(3), one, of(device.Float64), t(3), t(3)) },
		"CrossEntropy with real labels":   func() error { return k.CrossEntropy(s, t(), of(device.Float64, 2, 4), t(4, 2), t(4)) },
		"CrossEntropy with short sums":    func() error { return k.CrossEntropy(s, t(), t(2, 4), t(4, 2), labels) },
		"SGD with gradient of its own":    func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: double}) },
		"SGD without velocity":            func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: t(3), Momentum: 1}) },
		"SGD with flags of their own":     func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: t(3), Skip: t(3)}) },
		"SGD with an overflow of its own": func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: t(3), Overflow: t(1)}) },
		"SGD of integers":                 func() error { return k.SGD(s, kernels.SGDStep{Param: of(device.Int32, 3), Grad: of(device.Int32, 3)}) },
		"SGD with a master of 32 bits":    func() error { return k.SGD(s, kernels.SGDStep{Param: t(3), Grad: t(3), Master: t(3)}) },
		"SGD with a half master": func() error {
			return k.SGD(s, kernels.SGDStep{Param: of(device.Float16, 3), Grad: of(device.Float16, 3), Master: of(device.Float16, 3)})
		},
		"SGD with a half velocity": func() error {
			v := of(device.Float16, 3)
			return k.SGD(s, kernels.SGDStep{Param: v, Grad: v, Velocity: v, Momentum: 1, Master: t(3)})
		},
		"SGD with the other half's gradient": func() error {
			return k.SGD(s, kernels.SGDStep{Param: of(device.Float16, 3), Grad: of(device.BFloat16, 3), Master: t(3)})
		},
		"SGD with a gradient wider than its parameter": func() error { return k.SGD(s, kernels.SGDStep{Param: of(device.Float16, 3), Grad: t(3)}) },
		"AdamW without moments":                        func() error { return k.AdamW(s, kernels.AdamWStep{Param: t(3), Grad: t(3), Step: 1}) },
		"Uniform of integers":                          func() error { return k.Uniform(s, of(device.Int64, 3), 0, 1, 1, 0) },
		"Normal of integers":                           func() error { return k.Normal(s, of(device.Int64, 3), 0, 1, 1, 0) },
		"NonFinite to a number":                        func() error { return k.NonFinite(s, t(), t(3)) },
		"NonFinite of integers":                        func() error { return k.NonFinite(s, of(device.Uint8), of(device.Int32, 3)) },
		"Hash to a real number":                        func() error { return k.Hash(s, of(device.Float64), t(3)) },
		"Quantize of doubles":                          func() error { return k.Quantize(s, of(device.Uint8, device.Align), double) },
		"Quantize to numbers":                          func() error { return k.Quantize(s, t(device.Align), t(3)) },
		"Dequantize to doubles":                        func() error { return k.Dequantize(s, double, one, of(device.Uint8, device.Align)) },
		"Orthonormalize of halves":                     func() error { return k.Orthonormalize(s, of(device.BFloat16, 2, 3), of(device.BFloat16, 2, 3)) },
		"Hash of nothing":                              func() error { return k.Hash(s, of(device.Int64), device.Tensor{}) },
	} {
		misfit[*device.DTypeError](r, name, call)
	}
}

// misfit fails unless call panics with an error of type E.
func misfit[E error](r *rig, name string, call func() error) {
	defer func() {
		p := recover()
		if f, ok := p.(failure); ok {
			panic(f)
		}
		if _, ok := p.(E); !ok {
			r.fail("%s: want a panic with %T, got %s", name, *new(E), fmt.Sprint(p))
		}
	}()
	if err := call(); err != nil {
		r.fail("%s: want a panic, got the error %w", name, err)
	}
}
