// Command toy is the smallest distributed program: one parameter whose gradient is averaged over the
// ranks. Rank r computes y = w·7·r, whose gradient with respect to w is 7·r. After the backward pass
// every rank holds the average of these gradients.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/toy
//
// With --trace FILE each rank writes a trace for goddp trace and Perfetto.
package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

var traceFile = flag.String("trace", "", "write a trace to `FILE`: see goddp trace")

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
	if *traceFile != "" {
		trace.Start()
	}
	x := autograd.Scalar(pg.Device(), float32(rank))
	y := model.Forward(x)
	fmt.Printf("rank %d: y=w*7*x: %v=%v*7*%v\n", rank, y.Item(), w.Item(), x.Item())
	fmt.Printf("rank %d: dy/dw=7*x: %v\n", rank, 7*x.Item())
	if err := y.Backward(nil); err != nil {
		return err
	}
	fmt.Printf("rank %d: reduced dy/dw: %v\n", rank, w.Grad().Item())
	if *traceFile != "" {
		return trace.WriteFile(profile.RankPath(*traceFile, rank), rank)
	}
	return nil
}

func main() {
	flag.Parse()
	comm.Main(train)
}
