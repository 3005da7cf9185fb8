package autograd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// Operands that do not fit are a panic with a typed error, which names two shapes that differ.
func TestMisfits(t *testing.T) {
	dev, other := newDevice(t), newDevice(t)
	zeros := func(shape ...int) *autograd.Variable { return autograd.Zeros(dev, device.Float32, shape...) }
	ints := func(shape ...int) *autograd.Variable { return autograd.Zeros(dev, device.Int64, shape...) }
	mask := autograd.Zeros(dev, device.Uint8, 2, 3)
	x, y, empty := zeros(2, 3), zeros(4, 2), zeros(0, 3)
	q, k := zeros(2, 4, 3, 8), zeros(2, 2, 5, 8)
	filter, image := zeros(2, 2, 1, 1), zeros(1, 2, 4, 4)
	for name, f := range map[string]func(){
		"Add":                              func() { autograd.Add(x, y) },
		"MatMul":                           func() { autograd.MatMul(x, y) },
		"MatMulT":                          func() { autograd.MatMulT(x, true, y, false) },
		"Linear":                           func() { autograd.Linear(x, y, nil) },
		"Linear bias":                      func() { autograd.Linear(x, x, zeros(3)) },
		"LowRankLinear":                    func() { autograd.LowRankLinear(x, x, nil, x, y, 1) },
		"FeedForward":                      func() { autograd.FeedForward(x, y, nil, y, nil, nil) },
		"Sum":                              func() { autograd.Sum(x, 2) },
		"Mean":                             func() { autograd.Mean(x, 4, 2, 3) },
		"MSELoss":                          func() { autograd.MSELoss(x, zeros(3)) },
		"CrossEntropyLoss":                 func() { autograd.CrossEntropyLoss(x, ints(1)) },
		"LinearCrossEntropyLoss":           func() { autograd.LinearCrossEntropyLoss(x, y, ints(2), nil) },
		"LinearCrossEntropyLoss of labels": func() { autograd.LinearCrossEntropyLoss(x, x, ints(1), nil) },
		"FromSlice":                        func() { autograd.FromSlice(dev, []float32{1}, 2) },
		"Item":                             func() { x.Item() },
		"Backward with a Gradient":         func() { zeros(2, 3).RequireGrad().Backward(&autograd.BackwardOptions{Gradient: y}) },

		"Reshape":            func() { autograd.Reshape(x, 4) },
		"Reshape to 4 rows":  func() { autograd.Reshape(x, 4, -1) },
		"Reshape to two -1":  func() { autograd.Reshape(x, -1, -1) },
		"Reshape of nothing": func() { autograd.Reshape(empty, 0, -1) },
		"Permute of few":     func() { autograd.Permute(x, 0) },
		"Permute of one":     func() { autograd.Permute(x, 1, -1) },
		"Slice by nothing":   func() { autograd.Slice(x, 0, 0, 1, 0) },
		"Concat":             func() { autograd.Concat(0, x, zeros(2, 2)) },
		"Concat of vectors":  func() { autograd.Concat(0, x, zeros(2)) },
		"Stack":              func() { autograd.Stack(0, x, zeros(3, 3)) },
		"Expand":             func() { autograd.Expand(x, 2, 4) },
		"Expand to -1":       func() { autograd.Expand(zeros(), -1) },

		"IndexSelect by a matrix":  func() { autograd.IndexSelect(x, 0, ints(1, 1)) },
		"Embedding of a vector":    func() { autograd.Embedding(zeros(3), ints(1), -1) },
		"Gather by a vector":       func() { autograd.Gather(x, 0, ints(1)) },
		"Gather of more than is x": func() { autograd.Gather(x, 0, ints(1, 4)) },

		"Less":              func() { autograd.Less(x, zeros(2)) },
		"Where":             func() { autograd.Where(mask, x, zeros(2)) },
		"MaskedFill":        func() { autograd.MaskedFill(zeros(3), mask, 0) },
		"Max":               func() { autograd.Max(x, 2) },
		"Max of nothing":    func() { autograd.Max(empty, 3) },
		"ArgMax of nothing": func() { autograd.ArgMax(empty, 0) },

		"Conv2d of other channels":      func() { autograd.Conv2d(zeros(1, 3, 4, 4), filter, nil, nil) },
		"Conv2d by a kernel too large":  func() { autograd.Conv2d(zeros(1, 2, 4, 2), zeros(2, 2, 3, 3), nil, nil) },
		"Conv2d with another bias":      func() { autograd.Conv2d(image, filter, zeros(3), nil) },
		"Conv2d with a negative stride": func() { autograd.Conv2d(image, filter, nil, &autograd.Conv2dOptions{Stride: [2]int{-1, 1}}) },
		"Conv2d of three axes":          func() { autograd.Conv2d(zeros(2, 4, 4), filter, nil, nil) },
		"MaxPool2d with much padding":   func() { autograd.MaxPool2d(image, twice(2), &autograd.Pool2dOptions{Padding: twice(2)}) },
		"AvgPool2d of a large window":   func() { autograd.AvgPool2d(zeros(1, 1, 1, 4), twice(2), nil) },
		"AdaptiveAvgPool2d of nothing":  func() { autograd.AdaptiveAvgPool2d(zeros(1, 1, 0, 4), 2, 2, nil) },

		"BatchNorm of a batch of one":     func() { autograd.BatchNorm(zeros(1, 3), nil, nil, nil) },
		"BatchNorm of a vector":           func() { autograd.BatchNorm(zeros(3), nil, nil, nil) },
		"BatchNorm with another residual": func() { autograd.BatchNorm(x, nil, nil, &autograd.BatchNormOptions{Residual: zeros(3, 2)}) },
		"BatchNorm with a long weight":    func() { autograd.BatchNorm(x, zeros(4), nil, nil) },
		"LayerNorm of another last axis":  func() { autograd.LayerNorm(x, []int{4}, nil, nil, 0) },
		"LayerNorm of no axes":            func() { autograd.LayerNorm(x, nil, nil, nil, 0) },
		"RMSNorm of no axes":              func() { autograd.RMSNorm(x, nil, nil, 0) },
		"LayerNorm with a weight":         func() { autograd.LayerNorm(x, []int{3}, x, nil, 0) },
		"GroupNorm":                       func() { autograd.GroupNorm(x, 2, nil, nil, 0) },

		"attention of three axes":      func() { autograd.ScaledDotProductAttention(zeros(2, 3, 8), k, k, nil) },
		"attention of other batches":   func() { autograd.ScaledDotProductAttention(zeros(1, 4, 3, 8), k, k, nil) },
		"attention of other sizes":     func() { autograd.ScaledDotProductAttention(zeros(2, 4, 3, 7), k, k, nil) },
		"attention of other values":    func() { autograd.ScaledDotProductAttention(q, k, zeros(2, 2, 4, 8), nil) },
		"attention of heads":           func() { autograd.ScaledDotProductAttention(q, zeros(2, 3, 5, 8), zeros(2, 3, 5, 8), nil) },
		"attention with another mask":  func() { autograd.ScaledDotProductAttention(q, k, k, &autograd.AttentionOptions{Mask: zeros(3, 4)}) },
		"attention of packed operands": func() { autograd.PackedAttention(zeros(2, 3, 25), 4, 2, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := panics[*device.ShapeError](t, f); err != nil && len(err.B) > 0 && err.A.Equal(err.B) {
				t.Errorf("%v names one shape twice", err)
			}
		})
	}
	for name, f := range map[string]func(){
		"Transpose": func() { autograd.Transpose(x, 0, 2) },
		"Slice":     func() { autograd.Slice(x, -3, 0, 1, 1) },
		"Flatten":   func() { autograd.Flatten(x, 2) },
		"Stack":     func() { autograd.Stack(3, x, x) },
	} {
		if err := panics[*device.ShapeError](t, f); err != nil && (err.Op != name || !strings.Contains(err.Want, "axis")) {
			t.Errorf("the error of %s is %s's: %v", name, err.Op, err)
		}
	}
	for _, f := range []func(){
		func() { autograd.Add(x, autograd.Zeros(dev, device.Float64, 2, 3)) },
		func() { autograd.CrossEntropyLoss(x, zeros(2)) },
		func() { ints(1).RequireGrad() },
		func() { autograd.Concat(0, x, ints(1, 3)) },
		func() { autograd.Embedding(x, zeros(2), -1) },
		func() { autograd.Where(x, x, x) },
		func() { autograd.MaskedFill(x, x, 1) },
		func() { autograd.Less(x, mask) },
		func() { autograd.ArgMax(mask, 0) },
	} {
		panics[*device.DTypeError](t, f)
	}
	x.RequireGrad()
	h := autograd.MulScalar(x, 2)
	for _, f := range []func(){
		func() { x.Backward(nil) },
		func() { h.RequireGrad() },
		func() { gradsink.Set(h, &sink{}, nil) },
		func() { autograd.Sum(h.Detach()).Backward(nil) },
	} {
		panics[*autograd.GraphError](t, f)
	}
	panics[*autograd.DeviceError](t, func() { autograd.Add(x, autograd.Zeros(other, device.Float32, 2, 3)) })
	weight := zeros(2, 3).SetName("tok.weight")
	for _, bad := range []int64{-1, 2} {
		err := panics[*device.IndexError](t, func() { autograd.Embedding(weight, autograd.FromSlice(dev, []int64{1, bad}), -1) })
		if want := (device.IndexError{Op: "Embedding", At: 1, Index: bad, Limit: 2, Layer: "tok"}); err != nil && *err != want {
			t.Errorf("the error is %+v, want %+v", *err, want)
		}
	}
	// An error says what the caller named: the loss and the label, the limit of a head, and no layer that is tied.
	integers := ints(2, 3)
	labels := func(v ...int64) *autograd.Variable { return autograd.FromSlice(dev, v) }
	for want, f := range map[string]func(){
		"CrossEntropyLoss: label -1 of row 1 is not one of the 3 classes, 0 to 2":          func() { autograd.CrossEntropyLoss(x, labels(0, -1)) },
		"LinearCrossEntropyLoss: label 2 of row 0 is not one of the 2 classes, 0 to 1":     func() { autograd.LinearCrossEntropyLoss(x, weight, labels(2, 0), nil) },
		"LinearCrossEntropyLoss: shapes [4 2] and [2 3] do not fit (parameter tok.weight)": func() { autograd.LinearCrossEntropyLoss(y, weight, labels(1, 0, 0, 0), nil) },
		"ScaledDotProductAttention: got shape [1 1 3 288], want heads of at most 256 elements, not 288": func() {
			autograd.ScaledDotProductAttention(zeros(1, 1, 3, 288), zeros(1, 1, 3, 288), zeros(1, 1, 3, 288), nil)
		},
		"Mean: got int64, but the device computes only in [float32 float64]":                 func() { autograd.Mean(integers) },
		"LogSoftmax: got int64, but the device computes only in [float32 float64]":           func() { autograd.LogSoftmax(integers, 0) },
		"PackedAttention: got shape [1 3 24], want at least 1 head, not 0":                   func() { autograd.PackedAttention(zeros(1, 3, 24), 0, 0, nil) },
		"autograd: Concat of 0 tensors, want at least 1":                                     func() { autograd.Concat(0) },
		"autograd: Stack of 0 tensors, want at least 1":                                      func() { autograd.Stack(0) },
		"PackedAttention: got shape [1 3 1728], want heads of at most 256 elements, not 288": func() { autograd.PackedAttention(zeros(1, 3, 1728), 2, 2, nil) },
	} {
		if got := panicText(f); got != want {
			t.Errorf("the error is\n%s\nwant\n%s", got, want)
		}
	}
}

// panicText returns the text of f's panic.
func panicText(f func()) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	return ""
}
