package checkpoint_test

import (
	"context"
	"fmt"
	"os"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// The first run saves its state after step 3. The second run continues at that step.
func Example() {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	for range 2 {
		if err := run(dir); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// the run begins at step 0 with seen = 0
	// the run begins at step 3 with seen = 96
}

func run(dir string) error {
	ctx := context.Background()
	groups, err := comm.Local(1, nil) // under golaunch: comm.Init
	if err != nil {
		return err
	}
	defer groups[0].Close()
	model, err := ddp.New(nn.Linear(4, 2, nil), groups[0], nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	if err != nil {
		return err
	}
	manager, err := checkpoint.Open(ctx, groups[0], dir, &checkpoint.Options{Keep: 3})
	if err != nil {
		return err
	}
	defer manager.Close()
	var seen int
	state := checkpoint.State{Model: model, Optimizers: []optim.Optimizer{opt}, Values: map[string]any{"seen": &seen}}
	step, err := manager.Resume(ctx, state)
	if err != nil {
		return err
	}
	fmt.Println("the run begins at step", step, "with seen =", seen)
	if step == 0 {
		seen = 96 // ... three steps of 32 samples ...
		return manager.Save(ctx, 3, state)
	}
	return nil
}
