package autograd_test

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cpu"
)

func Example() {
	dev := cpu.New(nil)
	defer dev.Close()
	w := autograd.Scalar(dev, 5).RequireGrad()
	x := autograd.Scalar(dev, 3)
	y := autograd.Mul(autograd.MulScalar(w, 7), x)
	if err := y.Backward(nil); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(y.Item(), w.Grad().Item())
	// Output: 105 21
}

// A training loop whose steps are launched as one CUDA graph each, if dev is a GPU.
func ExampleCapture() {
	dev := cpu.New(nil)
	defer dev.Close()
	w := autograd.FromSlice(dev, []float64{1}).RequireGrad()
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		w.ZeroGrad()
		y := autograd.Sub(autograd.Mul(w, in[0]), in[1])
		loss := autograd.Sum(autograd.Mul(y, y))
		return loss, loss.Backward(nil)
	}, nil)
	for n := range 3 {
		x, y := autograd.FromSlice(dev, []float64{float64(n + 1)}), autograd.FromSlice(dev, []float64{2})
		loss, err := step(x, y)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("loss", loss.Item(), "gradient", w.Grad().Item())
	}
	// Output:
	// loss 1 gradient -2
	// loss 0 gradient 0
	// loss 1 gradient 6
}
