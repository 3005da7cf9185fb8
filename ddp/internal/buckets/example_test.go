package buckets_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// step is one backward pass of an autograd engine that has computed the gradients of two parameters.
func step(ctx context.Context, pg *comm.ProcessGroup, gradients [][]float32) error {
	r, err := buckets.New(ctx, pg, []reducer.Param{
		{Name: "weight", Shape: device.Shape{3}, DType: device.Float32},
		{Name: "bias", Shape: device.Shape{1}, DType: device.Float32},
	}, nil)
	if err != nil {
		return err
	}
	r.Begin(true, nil)
	for i := len(gradients) - 1; i >= 0; i-- { // the gradient of the first parameter is ready last
		bucket := device.Elements[float32](r.Grad(i))
		for k, g := range gradients[i] {
			bucket[k] = g * float32(r.Scale()) // Scale is 1, because Options.Prescaled is not set
		}
		r.Ready(i, pg.Device().Compute().Mark())
	}
	if err := r.Finish(ctx, nil); err != nil {
		return err
	}
	fmt.Println("average", device.Elements[float32](r.Grad(0)), device.Elements[float32](r.Grad(1)))
	return r.Err()
}

// An engine writes its gradients to the reducer's buckets. The reducer reduces each bucket as soon as the
// bucket is complete.
func ExampleReducer() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer groups[0].Close()
	if err := step(context.Background(), groups[0], [][]float32{{1, 2, 3}, {4}}); err != nil {
		fmt.Println(err)
	}
	// Output: average [1 2 3] [4]
}
