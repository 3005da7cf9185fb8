// Command toy is the smallest distributed program: one parameter, one
// gradient, averaged over the ranks. Each rank r computes y = w·7·r, whose
// gradient for w is 7·r; after the backward pass every rank holds the average.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/toy
package main

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// toy is the model y = w·7·x.
type toy struct{ w *nn.Parameter }

func (t toy) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(autograd.MulScalar(t.w.Var(), 7), x)
}

func (t toy) Parameters() []*nn.Parameter { return []*nn.Parameter{t.w} }

func train(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	rank := pg.Rank()
	w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 5))
	model, err := ddp.New(toy{w}, pg, nil)
	if err != nil {
		return err
	}

	trace := profile.Of(pg.Device())
	trace.Start()
	x := autograd.Scalar(pg.Device(), float32(rank))
	y := model.Forward(x)
	fmt.Printf("rank %d: y=w*7*x: %v=%v*7*%v\n", rank, y.Item(), w.Item(), x.Item())
	fmt.Printf("rank %d: dy/dw=7*x: %v\n", rank, 7*x.Item())
	if err := y.Backward(); err != nil {
		return err
	}
	fmt.Printf("rank %d: reduced dy/dw: %v\n", rank, w.Grad().Item())
	if rank == 0 {
		return trace.WriteFile("trace_ddp_simple.json", rank)
	}
	return nil
}

func main() { comm.Main(train) }
