package amp_test

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// The scaler skips the second of three steps, whose gradient is infinite, and halves the scale.
func ExampleScaler() {
	dev := cpu.New(nil)
	defer dev.Close()
	w := nn.NewParameter("w", autograd.FromSlice(dev, []float32{1}))
	opt, err := optim.NewSGD([]*nn.Parameter{w}, &optim.SGDOptions{LR: 0.25})
	if err != nil {
		fmt.Println(err)
		return
	}
	scaler, err := amp.NewScaler(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, input := range []float32{1, float32(math.Inf(1)), 1} {
		loss := autograd.Sum(autograd.Mul(w.Var(), autograd.FromSlice(dev, []float32{input})))
		if err := scaler.Scale(loss).Backward(nil); err != nil {
			fmt.Println(err)
			return
		}
		if err := scaler.Step(opt); err != nil {
			fmt.Println(err)
			return
		}
		scaler.Update()
		opt.ZeroGrad()
		steps, _ := opt.Committed()
		fmt.Println("w", w.Var().Item(), "scale", scaler.GetScale(), "steps", steps)
	}
	// Output:
	// w 0.75 scale 65536 steps 1
	// w 0.75 scale 32768 steps 1
	// w 0.5 scale 32768 steps 2
}
