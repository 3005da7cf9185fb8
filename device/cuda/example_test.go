package cuda_test

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cuda"
)

// A product of two matrices on the first GPU. The program needs no CUDA toolkit.
func Example() {
	dev, err := cuda.Open(0, &cuda.Options{AllowTF32: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	x := autograd.FromSlice(dev, []float32{1, 2, 3, 4}, 2, 2)
	y := autograd.MatMul(x, x)
	fmt.Println(autograd.Sum(y).Item())
}
