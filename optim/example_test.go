package optim_test

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// SGD minimizes (w - 3)².
func ExampleNewSGD() {
	dev := cpu.New(nil)
	defer dev.Close()
	w := nn.NewParameter("w", autograd.FromSlice(dev, []float32{0}))
	opt, err := optim.NewSGD([]*nn.Parameter{w}, &optim.SGDOptions{LR: 0.1, Momentum: 0.5})
	if err != nil {
		fmt.Println(err)
		return
	}
	target := autograd.FromSlice(dev, []float32{3})
	for range 60 {
		if err := nn.MSELoss(w.Var(), target, nil).Backward(nil); err != nil {
			fmt.Println(err)
			return
		}
		if err := opt.Step(); err != nil {
			fmt.Println(err)
			return
		}
		opt.ZeroGrad()
	}
	steps, _ := opt.Committed()
	fmt.Printf("w is %.3f after %d steps\n", w.Var().Item(), steps)
	// Output: w is 3.000 after 60 steps
}

// A group gives some parameters other options: here the bias has no weight decay.
func ExampleNewAdamW() {
	net := nn.Linear(2, 2, nil)
	params := net.Parameters()
	opt, err := optim.NewAdamW(params[:1], &optim.AdamWOptions{LR: 0.001, WeightDecay: 0.01},
		optim.AdamWGroup{Params: params[1:], AdamWOptions: optim.AdamWOptions{LR: 0.001}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range opt.Parameters() {
		fmt.Println(p.Name())
	}
	// Output:
	// weight
	// bias
}
