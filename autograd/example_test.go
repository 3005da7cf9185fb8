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
	if err := y.Backward(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(y.Item(), w.Grad().Item())
	// Output: 105 21
}
