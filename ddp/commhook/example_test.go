package commhook_test

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/nn"
)

// A hook reduces gradients in BFloat16: half the bytes of Float32, with 8 bits of precision.
func ExampleBF16() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	pg := groups[0]
	defer pg.Close()
	model, err := ddp.New(nn.Linear(1, 1, nil), pg, &ddp.Options{Hook: commhook.BF16(nil)})
	if err != nil {
		fmt.Println(err)
		return
	}
	x := autograd.FromSlice(pg.Device(), []float32{0.3}, 1, 1)
	if err := autograd.Sum(model.Forward(x)).Backward(nil); err != nil {
		fmt.Println(err)
		return
	}
	weight := model.Parameters()[0]
	fmt.Printf("the gradient of %s is %.6f, rounded from 0.3\n", weight.Name(), weight.Grad().Item())
	// Output: the gradient of weight is 0.300781, rounded from 0.3
}
