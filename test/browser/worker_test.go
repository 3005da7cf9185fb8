package browser

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

var (
	steps       = flag.Int("steps", 1_000_000, "number of steps")
	pause       = flag.Duration("pause", 2*time.Millisecond, "how long each sample takes on all ranks")
	every       = flag.Int("every", 5, "number of steps between two lines")
	slow        = flag.Int("slow", -1, "the rank whose data are slow")
	slowFrom    = flag.String("slow-file", "", "the slow rank is slow while this file exists; by default always")
	fails       = flag.String("fail-file", "", "rank 1 removes this file when it exists, and panics")
	hostile     = flag.Bool("hostile", false, "evaluate to hostile names and values")
	globalBatch = flag.Int("global-batch", 0, "the GlobalBatch of the loader")
	checkpoints = flag.String("checkpoints", "", "folder for checkpoints")
	log         = flag.String("log", "", "the Log of train.Run")
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return path != "" && err == nil
}

// points returns a data set whose samples take time.
func points(rank int) data.Dataset {
	fields := []data.Field{{Name: "x", DType: device.Float32, Shape: device.Shape{8}}, {Name: "y", DType: device.Float32, Shape: device.Shape{1}}}
	return data.Each(1<<20, fields, func(i int, dst []device.Tensor) error {
		time.Sleep(*pause)
		if rank == *slow && (*slowFrom == "" || exists(*slowFrom)) {
			time.Sleep(20 * time.Millisecond)
		}
		if rank == 1 && *fails != "" && os.Remove(*fails) == nil {
			panic("the file of --fail-file exists")
		}
		x, sum := device.Elements[float32](dst[0]), 0.0
		for k := range x {
			x[k] = float32(math.Sin(float64(i*7 + k*13)))
			sum += float64(x[k])
		}
		device.Elements[float32](dst[1])[0] = float32(math.Tanh(sum))
		return nil
	})
}

func run(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	net := nn.Sequential(nn.Linear(8, 32, nil), nn.Tanh(), nn.Linear(32, 1, nil))
	if err := nn.Place(net, pg.Device(), 1); err != nil {
		return err
	}
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{LR: 1e-3})
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(points(pg.Rank()), pg, &data.LoaderOptions{Batch: 4, GlobalBatch: *globalBatch, Workers: 1, Ahead: 1, Shuffle: true})
	if err != nil {
		return err
	}
	fmt.Printf("rank %d trains\n", pg.Rank())
	c := &train.Config{
		Model: model, Optimizer: opt, Data: loader, MaxSteps: *steps, LogEvery: *every, LR: schedule.Constant(1e-3), Checkpoints: *checkpoints, Log: *log,
		Loss: func(b *data.Batch) *autograd.Variable { return nn.MSELoss(model.Forward(b.Vars[0]), b.Vars[1], nil) },
	}
	if *checkpoints != "" {
		c.SaveEvery = 50
	}
	if *hostile {
		c.EvaluateEvery = 10
		c.Evaluate = func(context.Context) ([]progress.Value, error) {
			values := []progress.Value{
				progress.V("<img src=x onerror=document.title='injected'>", 1), progress.V(`"}\n# quotes`, 2), progress.V(strings.Repeat("long", 1<<18), 3),
				progress.V("not a number", math.NaN()), progress.V("infinite", math.Inf(1)),
			}
			for i := range 10_000 {
				values = append(values, progress.V(fmt.Sprintf("number %d", i), float64(i)))
			}
			return values, nil
		}
	}
	return train.Run(ctx, pg, c)
}

// work is a program of golaunch that trains a small model by train.Run, and makes one rank slow, or fail, or report
// hostile numbers.
func work() {
	flag.Parse()
	comm.Main(run)
}
