package nn_test

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// A network of two layers, its parameters, and one backward pass.
func Example() {
	dev := cpu.New(nil)
	defer dev.Close()
	net := nn.Sequential(nn.Linear(4, 8, nil), nn.ReLU(), nn.Linear(8, 3, nil))
	if err := nn.Place(net, dev, 1); err != nil {
		fmt.Println(err)
		return
	}
	x := autograd.FromSlice(dev, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)
	labels := autograd.FromSlice(dev, []int64{0, 2})
	logits := net.Forward(x)
	if err := nn.CrossEntropyLoss(logits, labels, nil).Backward(nil); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("logits", logits.Shape())
	for _, p := range net.Parameters() {
		fmt.Println(p.Name(), p.Shape(), "gradient", p.Grad().Shape())
	}
	// Output:
	// logits [2 3]
	// 0.weight [8 4] gradient [8 4]
	// 0.bias [8] gradient [8]
	// 2.weight [3 8] gradient [3 8]
	// 2.bias [3] gradient [3]
}
