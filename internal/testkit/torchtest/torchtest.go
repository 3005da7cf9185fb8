// Package torchtest compares operations of autograd and nn with PyTorch's, for tests, which run with -long
// alone. [testkit.Interpreter] chooses the interpreter. If it has no torch, the tests are skipped. GODDP_DEVICE
// chooses the device, and PyTorch uses a device of the same kind.
package torchtest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

//go:embed torchtest.py
var script string

// Input is an operand of a [Case]. It holds Integers if that is not nil, else Numbers.
type Input struct {
	Shape    []int
	Numbers  []float64
	Integers []int64
	Constant bool // the gradient for this input is not computed
}

// Case is a computation, in Go and in Python.
type Case struct {
	Name string
	// Expr is a Python expression of the inputs x[0], x[1], ... Its value is a tensor. It may use torch,
	// and F for torch.nn.functional.
	Expr string
	In   []Input
	// DType is the type of the numbers. The zero value, Invalid, means Float64.
	DType device.DType
	// Go computes the same tensor.
	Go func(x []*autograd.Variable) *autograd.Variable
	// Tolerance is the allowed error of an element, relative to the larger of 1 and the largest element
	// of its tensor. 0 means 1e-10 for Float64 and 1e-5 for the other types.
	Tolerance float64
}

func (c *Case) dtype() device.DType {
	if c.DType == device.Invalid {
		return device.Float64
	}
	return c.DType
}

func (c *Case) tolerance() float64 {
	switch {
	case c.Tolerance != 0:
		return c.Tolerance
	case c.dtype() == device.Float64:
		return 1e-10
	}
	return 1e-5
}

// array is a tensor in the JSON that is exchanged with Python.
type array struct {
	Shape   []int  `json:"shape"`
	Data    []byte `json:"data"`
	Integer bool   `json:"integer"`
	Grad    bool   `json:"grad"`
}

// numbers decodes the data of a.
func (a *array) numbers() []float64 {
	v := make([]float64, len(a.Data)/8)
	copy(bytesOf(v), a.Data)
	return v
}

func bytesOf[T float64 | int64](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
}

type request struct {
	Cuda  bool          `json:"cuda"`
	Cases []requestCase `json:"cases"`
}

type requestCase struct {
	Expr  string  `json:"expr"`
	DType string  `json:"dtype"`
	In    []array `json:"in"`
}

type reply struct {
	Version, Device string
	Cases           []struct {
		Y     array
		Grads []*array
		Error string
	}
}

// Check runs all cases in Go and in one process of PyTorch, and compares the results and the
// gradients for all inputs that are not Constant. The gradient of the result at element i is sin(i+1).
func Check(t *testing.T, cases []Case) {
	t.Helper()
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	want := evaluate(t, dev.String() != "cpu", cases)
	t.Logf("%d cases on %v and in PyTorch %s on %s", len(cases), dev, want.Version, want.Device)
	failed := 0
	for i, c := range cases {
		theirs := want.Cases[i]
		if theirs.Error != "" {
			t.Fatalf("%s: PyTorch's %s: %s", c.Name, c.Expr, theirs.Error)
		}
		if err := c.compare(t, dev, &theirs.Y, theirs.Grads); err != nil {
			t.Errorf("%s: %v", c.Name, err)
			if failed++; failed == 10 {
				t.Fatal("more cases may fail")
			}
		}
	}
}

// evaluate returns PyTorch's results of the cases.
func evaluate(t *testing.T, cuda bool, cases []Case) (r reply) {
	t.Helper()
	ask := request{Cuda: cuda}
	for _, c := range cases {
		rc := requestCase{Expr: c.Expr, DType: c.dtype().String()}
		for _, in := range c.In {
			a := array{Shape: append([]int{}, in.Shape...), Data: bytesOf(in.Numbers), Grad: !in.Constant}
			if in.Integers != nil {
				a.Data, a.Integer, a.Grad = bytesOf(in.Integers), true, false
			}
			rc.In = append(rc.In, a)
		}
		ask.Cases = append(ask.Cases, rc)
	}
	Run(t, script, ask, &r)
	return r
}

// Run runs a Python script. The script reads request as JSON from its standard input. Run decodes
// the JSON that the script prints into answer. It skips the test if the script exits with code 77,
// which means that torch is not installed.
func Run(t *testing.T, script string, request, answer any) {
	t.Helper()
	testkit.Long(t)
	text, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(testkit.RunPython(t, bytes.NewReader(text), "-c", script), answer); err != nil {
		t.Fatal(err)
	}
}

// compare computes c on dev, and compares the result y and the gradients grads of PyTorch with it.
func (c *Case) compare(t *testing.T, dev device.Device, y *array, grads []*array) (err error) {
	autograd.Scope(dev, func() {
		var x []*autograd.Variable
		for _, in := range c.In {
			var v *autograd.Variable
			switch {
			case in.Integers != nil:
				v = autograd.FromBytes(dev, device.Int64, in.Shape, bytesOf(in.Integers))
			default:
				v = autograd.Cast(autograd.FromSlice(dev, in.Numbers, append([]int{}, in.Shape...)...), c.dtype()).Detach()
			}
			if in.Integers == nil && !in.Constant {
				v.RequireGrad()
			}
			x = append(x, v)
		}
		got := c.Go(x)
		if err = c.near(t, "the result", got, y); err != nil || !got.RequiresGrad() {
			return
		}
		upstream := make([]float64, got.Shape().Len())
		for i := range upstream {
			upstream[i] = math.Sin(float64(i + 1))
		}
		g := autograd.Cast(autograd.FromSlice(dev, upstream, append([]int{}, got.Shape()...)...), got.DType()).Detach()
		if err = got.Backward(&autograd.BackwardOptions{Gradient: g}); err != nil {
			return
		}
		for i, want := range grads {
			if v := x[i].Grad(); want != nil && v == nil {
				err = fmt.Errorf("input %d has no gradient", i)
			} else if want != nil {
				err = c.near(t, fmt.Sprintf("the gradient for input %d, %v,", i, x[i].Shape()), v, want)
			}
			if err != nil {
				return
			}
		}
	})
	return err
}

func (c *Case) near(t *testing.T, what string, v *autograd.Variable, want *array) error {
	if !slices.Equal([]int(v.Shape()), want.Shape) {
		return fmt.Errorf("%s has shape %v, PyTorch's %v", what, v.Shape(), want.Shape)
	}
	got, err := v.Read(t.Context())
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	numbers, size := want.numbers(), 1.0
	for _, w := range numbers {
		if !math.IsInf(w, 0) && w == w {
			size = max(size, math.Abs(w))
		}
	}
	for i, w := range numbers {
		if g := got[i]; g != w && !(g != g && w != w) && !(math.Abs(g-w) <= c.tolerance()*size) {
			return fmt.Errorf("element %d of %s is %v, PyTorch has %v", i, what, g, w)
		}
	}
	return nil
}
