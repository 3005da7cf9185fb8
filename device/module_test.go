package device_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

func TestKernelDeclarationsThatDoNotFit(t *testing.T) {
	m := device.NewModule("m.cu", "")
	for want, declare := range map[string]func(){
		"no Go function":                        func() { m.Kernel("k", "") },
		"want a function with parameters":       func() { m.Kernel("k", "", func() error { return nil }) },
		"got a int, want a function":            func() { m.Kernel("k", "", 3) },
		"parameter 0 has type string":           func() { m.Kernel("k", "", func(string) {}) },
		"earlier slices are of float32":         func() { m.Kernel("k", "x[n] y[n]", func(x []float32, y []float64) {}) },
		"differ in more than":                   func() { m.Kernel("k", "x[n]", func(x []float32) {}, func(x []float64, n int) {}) },
		`"[n]" do not declare`:                  func() { m.Kernel("k", "[n]", func(x []float32) {}) },
		`"x[n" do not declare`:                  func() { m.Kernel("k", "x[n", func(x []float32) {}) },
		`"x[[n]" do not declare`:                func() { m.Kernel("k", "x[[n]", func(x []float32) {}) },
		`"x y[n]" do not declare`:               func() { m.Kernel("k", "x y[n]", func(x []float32) {}) },
		`"x[n]" do not declare`:                 func() { m.Kernel("k", "x[n]", func(x, y []float32) {}) },
		`more tensors than the function has: "`: func() { m.Kernel("k", "x[n] y[n]", func(x []float32) {}) },
		`"n2.5" in the shape of x`:              func() { m.Kernel("k", "x[n2.5]", func(x []float32) {}) },
		`"..." in the shape of x`:               func() { m.Kernel("k", "x[n ...]", func(x []float32) {}) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("the panic is %q, want one with %q", got, want)
				}
			}()
			declare()
		}()
	}
	if _, _, functions := m.Program(device.Float32); len(functions) != 0 {
		t.Errorf("%d kernels were added", len(functions))
	}
}

// The text of a CompileError contains the first error, whichever compiler reported it.
func TestCompileErrorIsOneLine(t *testing.T) {
	err := &device.CompileError{File: "a.cu", Log: "a.cu(2): warning #1: unused\n  int i;\na.cu(3): error: identifier \"x\" is undefined\n  x;\n  ^\n\n1 error detected"}
	if want := `a.cu does not compile: a.cu(3): error: identifier "x" is undefined`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestLaunchInATypeWithoutGoFunction(t *testing.T) {
	dev := cpu.New(nil)
	defer dev.Close()
	k := device.NewModule("m.cu", "").Kernel("k", "x[n]", func(x []float64) {})
	defer func() {
		err, _ := recover().(error)
		var dtype *device.DTypeError
		if !errors.As(err, &dtype) || dtype.Got != device.Float32 || dtype.Want != device.Float64 {
			t.Errorf("the panic is %v, want a DTypeError of float32", err)
		}
	}()
	dev.Kernels().Launch(dev.Compute(), k, device.Flat(1), device.HostTensor([]float32{1}, device.Invalid))
}
