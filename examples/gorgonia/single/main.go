// Command single trains a classifier in Gorgonia, in one process. The program in the parent folder is its
// distributed version.
//
//	go run ./examples/gorgonia/single
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"math"
	"os"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/examples/gorgonia/internal/blobs"
)

var (
	hidden  = flag.Int("hidden", 512, "width of the hidden layers")
	layers  = flag.Int("layers", 4, "number of hidden layers")
	samples = flag.Int("samples", 1000, "number of samples in an epoch")
	batch   = flag.Int("batch", 256, "number of samples in a step")
	epochs  = flag.Int("epochs", 4, "number of passes over the samples")
	lr      = flag.Float64("lr", 0.01, "learning rate")
	f32     = flag.Bool("float32", false, "compute in float32, not float64")
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

func (n *network) build() {
	h := n.x
	for i := range *layers + 1 {
		if i > 0 {
			h = G.Must(G.Rectify(h))
		}
		h = G.Must(G.Mul(h, n.learnables[2*i]))
		h = G.Must(G.BroadcastAdd(h, n.learnables[2*i+1], nil, []byte{0}))
	}
	// Row i of y holds the weight of sample i in the column of its class, and zeros.
	n.cost = G.Must(G.Neg(G.Must(G.Sum(G.Must(G.HadamardProd(n.y, G.Must(G.LogSoftMax(h))))))))
	G.Read(n.cost, &n.costValue)
}

func train() error {
	net := newNetwork(*batch)
	net.build()
	if _, err := G.Grad(net.cost, net.learnables...); err != nil {
		return err
	}
	vm := G.NewTapeMachine(net.cost.Graph(), G.BindDualValues(net.learnables...))
	defer vm.Close()
	solver := G.NewMomentum(G.WithLearnRate(*lr))
	step := 0
	for range *epochs {
		for from := 0; from < *samples; from += *batch {
			// The last batch may be smaller; the remaining rows have weight zero.
			to := min(from+*batch, *samples)
			blobs.Batch(net.inputs, net.wants, from, to, 1/float64(to-from))
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
			fmt.Printf("step %d loss %v\n", step, net.costValue.Data())
			step++
		}
	}
	sum := sha256.New()
	for _, l := range net.learnables {
		fmt.Fprint(sum, l.Value().Data())
	}
	fmt.Printf("params sha256 %x\n", sum.Sum(nil))
	return nil
}

func main() {
	flag.Parse()
	if *hidden < 1 || *layers < 0 || *samples < 1 || *batch < 1 || *epochs < 1 || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "single: --hidden %d, --layers %d, --samples %d, --batch %d, --epochs %d and arguments %q, want at least 0 layers, at least 1 of the others and no arguments\n",
			*hidden, *layers, *samples, *batch, *epochs, flag.Args())
		os.Exit(2)
	}
	if err := train(); err != nil {
		log.Fatal(err)
	}
}
