// Command gorgonia trains a classifier in Gorgonia, on any number of processes. It is the distributed
// version of the program in the folder single.
//
//	go run ./cmd/golaunch --nproc-per-node 4 ./examples/gorgonia
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"math"
	"os"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/ddpgorgonia"
	"github.com/goddp/goddp/examples/gorgonia/internal/blobs"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/profile"
)

var (
	hidden  = flag.Int("hidden", 512, "width of the hidden layers")
	layers  = flag.Int("layers", 4, "number of hidden layers")
	samples = flag.Int("samples", 1000, "number of samples in an epoch")
	batch   = flag.Int("batch", 256, "number of samples in a step, of all ranks together")
	epochs  = flag.Int("epochs", 4, "number of passes over the samples")
	lr      = flag.Float64("lr", 0.01, "learning rate")
	f32     = flag.Bool("float32", false, "compute in float32, not float64")
	bucket  = flag.Float64("bucket-cap-mb", 0, "size of a gradient bucket in `MiB`; 0 means 25, and 1 for the first bucket")
	first   = flag.Float64("first-bucket-cap-mb", 0, "size in `MiB` of the first bucket, which holds the last layers; 0 means --bucket-cap-mb")
	trace   = flag.String("trace", "", "write a trace to `FILE`: see goddp trace")
)

// network is a stack of layers with ReLU between them, and the cross-entropy of the softmax of its output.
type network struct {
	x, y          *G.Node
	learnables    G.Nodes
	cost          *G.Node
	costValue     G.Value
	inputs, wants *tensor.Dense
}

func newNetwork(rows int) *network {
	g, dt := G.NewGraph(), tensor.Float64
	if *f32 {
		dt = tensor.Float32
	}
	n := &network{
		x:      G.NewMatrix(g, dt, G.WithName("x"), G.WithShape(rows, blobs.Features)),
		y:      G.NewMatrix(g, dt, G.WithName("y"), G.WithShape(rows, blobs.Classes)),
		inputs: tensor.New(tensor.Of(dt), tensor.WithShape(rows, blobs.Features)),
		wants:  tensor.New(tensor.Of(dt), tensor.WithShape(rows, blobs.Classes)),
	}
	in := blobs.Features
	for i := range *layers + 1 {
		out := *hidden
		if i == *layers {
			out = blobs.Classes
		}
		n.learnables = append(n.learnables,
			G.NewMatrix(g, dt, G.WithName(fmt.Sprint("w", i)), G.WithShape(in, out), G.WithValue(blobs.Matrix(dt, uint64(i), in, out, math.Sqrt(2/float64(in))))),
			G.NewMatrix(g, dt, G.WithName(fmt.Sprint("b", i)), G.WithShape(1, out), G.WithValue(blobs.Matrix(dt, uint64(i), 1, out, 0))))
		in = out
	}
	return n
}

func (n *network) build(model *ddpgorgonia.Model) {
	h := n.x
	for i := range *layers + 1 {
		if i > 0 {
			h = G.Must(G.Rectify(h))
		}
		h = G.Must(G.Mul(h, model.Use(n.learnables[2*i])))
		h = G.Must(G.BroadcastAdd(h, model.Use(n.learnables[2*i+1]), nil, []byte{0}))
	}
	// Row i of y holds the weight of sample i in the column of its class, and zeros.
	n.cost = G.Must(G.Neg(G.Must(G.Sum(G.Must(G.HadamardProd(n.y, G.Must(G.LogSoftMax(h))))))))
	G.Read(n.cost, &n.costValue)
}

func train(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	if err := ddpgorgonia.UseBLAS(pg.Device()); err != nil {
		return err
	}
	rows := (*batch + pg.Size() - 1) / pg.Size() // of each rank
	net := newNetwork(rows)
	model, err := ddpgorgonia.New(pg, net.learnables, &ddpgorgonia.Options{BucketCapMB: *bucket, FirstBucketCapMB: *first})
	if err != nil {
		return err
	}
	net.build(model)
	vm, err := model.NewTapeMachine(net.cost)
	if err != nil {
		return err
	}
	defer vm.Close()
	recorder := profile.Of(pg.Device())
	if *trace != "" {
		recorder.Start()
	}
	solver := G.NewMomentum(G.WithLearnRate(*lr))
	step := 0
	for range *epochs {
		for from := 0; from < *samples; from += *batch {
			// The last batch may be smaller; the remaining rows have weight zero.
			to := min(from+*batch, *samples)
			// Each rank has a part of the batch; the parts of the last ranks may be smaller or empty.
			mine := min(from+pg.Rank()*rows, to)
			blobs.Batch(net.inputs, net.wants, mine, min(mine+rows, to), float64(pg.Size())/float64(to-from))
			if err := G.Let(net.x, net.inputs); err != nil {
				return err
			}
			if err := G.Let(net.y, net.wants); err != nil {
				return err
			}
			if err := vm.RunAll(); err != nil {
				return err
			}
			if err := solver.Step(G.NodesToValueGrads(net.learnables)); err != nil {
				return err
			}
			vm.Reset()
			if err := report(ctx, pg, step, net.costValue); err != nil {
				return err
			}
			step++
		}
	}
	sum := sha256.New()
	for _, l := range net.learnables {
		fmt.Fprint(sum, l.Value().Data())
	}
	fmt.Printf("rank %d: params sha256 %x\n", pg.Rank(), sum.Sum(nil))
	if *trace == "" {
		return nil
	}
	if pg.Rank() == 0 {
		fmt.Printf("rank 0: %v\n", recorder.Overlap())
	}
	return recorder.WriteFile(profile.RankPath(*trace, pg.Rank()), pg.Rank())
}

// report prints the loss of the global batch, which is the mean of the ranks' costs.
func report(ctx context.Context, pg *comm.ProcessGroup, step int, cost G.Value) error {
	var local float64
	switch c := cost.Data().(type) {
	case float32:
		local = float64(c)
	case float64:
		local = c
	}
	loss, err := metrics.Reduce(ctx, pg, metrics.Mean(local, 1))
	if err == nil && pg.Rank() == 0 {
		fmt.Printf("step %d loss %v\n", step, loss[0].Value)
	}
	return err
}

func main() {
	flag.Parse()
	if *hidden < 1 || *layers < 0 || *samples < 1 || *batch < 1 || *epochs < 1 || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "gorgonia: --hidden %d, --layers %d, --samples %d, --batch %d, --epochs %d and arguments %q, want at least 0 layers, at least 1 of the others and no arguments\n",
			*hidden, *layers, *samples, *batch, *epochs, flag.Args())
		os.Exit(2)
	}
	comm.Main(train)
}
