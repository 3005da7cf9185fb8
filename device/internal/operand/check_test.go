package operand

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Checks that pass allocate nothing, because every kernel runs one.
func TestChecksAllocate(t *testing.T) {
	x := device.HostTensor(make([]float32, 12), device.Invalid, 3, 4)
	number := device.HostTensor(make([]float32, 1), device.Invalid)
	number.Shape = device.Shape{}
	sgd := (&kernels.SGDStep{Param: x, Grad: x}).Update()
	adamW := (&kernels.AdamWStep{Param: x, Grad: x, Mean: x, Variance: x}).Update()
	for name, check := range map[string]func(){
		"Axpby":          func() { Axpby(x, x) },
		"Same":           func() { floats.Same("Unary", x, x) },
		"Binary":         func() { floats.Binary(kernels.Add, x, x, x) },
		"Sum":            func() { floats.Sum(number, x) },
		"MSE":            func() { floats.MSE(number, x, x) },
		"SGD":            func() { Update(&sgd) },
		"AdamW":          func() { Update(&adamW) },
		"Orthonormalize": func() { Orthonormalize(x, x) },
	} {
		if n := testing.AllocsPerRun(100, check); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
