// Command steps measures training steps in a row, as a training loop runs them: nothing waits for the device
// or for other ranks between two steps. bench/steps.sh runs it beside PyTorch (bench/torch_steps.py).
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./bench/steps --size 512 --layers 32 --batch 64
//
// On GPUs --captured captures the steps.
//
// The model is a stack of linear layers. Its first parameters and its data are the same numbers in both
// programs. Rank 0 prints one JSON object: the mean of a step in milliseconds, the losses of the steps that
// follow the measured ones, the peak of device memory, and with several ranks how long a step waits for
// communication, by the trace of further steps.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/timeline"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

var (
	size     = flag.Int("size", 4000, "width of every layer")
	batch    = flag.Int("batch", 1000, "number of samples per rank and step")
	layers   = flag.Int("layers", 3, "number of linear layers")
	warmup   = flag.Int("warmup", 15, "number of steps before the measured ones")
	steps    = flag.Int("steps", 60, "number of measured steps")
	bucket   = flag.Float64("bucket-cap-mb", 25, "size of a gradient bucket in `MiB`")
	first    = flag.Float64("first-bucket-cap-mb", 0, "size of the first bucket in `MiB` (default: as the others)")
	dtype    = flag.String("type", "float32", "type of parameters, data and products: float32, or on a GPU tf32 or bfloat16")
	captured = flag.Bool("captured", false, "capture the step")
	stage    = flag.Int("stage", 0, "what package ddp/zero divides among the ranks: 1, 2 or 3; 0 is package ddp")
	slots    = flag.Int("slots", 0, "number of buckets that are whole at the same time in stages 2 and 3; 0: the default")
	file     = flag.String("trace", "", "write a trace of further steps of rank 0 to this `FILE`")
	profiled = flag.String("cpuprofile", "", "write a profile of rank 0's measured steps to this `FILE`")
)

// losses is the number of losses that are read after the measured steps.
const losses = 5

// traced is the number of steps in the trace.
const traced = 20

// result is the output.
type result struct {
	Name      string    `json:"name"`
	Type      string    `json:"type"`
	Ranks     int       `json:"ranks"`
	StepMS    float64   `json:"step_ms"`
	PeakMiB   float64   `json:"peak_mib"`
	ExposedMS *float64  `json:"exposed_ms,omitempty"` // communication in a step that no computation hides; nil without a trace
	Losses    []float64 `json:"losses"`
}

// numbers returns the sequence number k of n numbers between -scale and scale, which torch_steps.py makes too.
func numbers(k uint64, n int, scale float32) []float32 {
	values := make([]float32, n)
	for i := range values {
		h := uint32((uint64(i) + k<<32 + 1) * 0x9E3779B97F4A7C15 >> 40) // 24 bits, which float32 holds
		values[i] = (float32(h)/(1<<23) - 1) * scale
	}
	return values
}

// network returns the model with its first parameters. They come from the host's memory, so that the peak of
// the device's is that of the steps.
func network(ctx context.Context, dev device.Device, dt device.DType) (nn.Module, error) {
	var modules []nn.Module
	for i := range *layers {
		if i > 0 {
			modules = append(modules, nn.ReLU())
		}
		modules = append(modules, nn.Linear(*size, *size, &nn.LinearOptions{DType: dt}))
	}
	net := nn.Sequential(modules...)
	if err := nn.Place(net, dev, 0); err != nil {
		return nil, err
	}
	bound, host := float32(1/math.Sqrt(float64(*size))), cpu.New(nil)
	defer host.Close()
	state := map[string]*autograd.Variable{}
	for k, p := range net.Parameters() {
		state[p.Name()] = autograd.FromSlice(host, numbers(uint64(k), p.Shape().Len(), bound), p.Shape()...)
	}
	return net, nn.LoadState(ctx, net, state)
}

func train(ctx context.Context) error {
	os.Setenv("GODDP_ALLOW_TF32", map[bool]string{true: "1", false: "0"}[*dtype == "tf32"])
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	dev, dt := pg.Device(), device.Float32
	if *dtype == "bfloat16" {
		dt = device.BFloat16
	}
	net, err := network(ctx, dev, dt)
	if err != nil {
		return err
	}
	model, opt, err := wrap(net, pg)
	if err != nil {
		return err
	}
	var data [2][2]*autograd.Variable // two batches in turn: each has inputs and targets
	for i := range data {
		for k := range data[i] {
			sequence := uint64(1000 + 10*pg.Rank() + 2*i + k)
			data[i][k] = autograd.Cast(autograd.FromSlice(dev, numbers(sequence, *batch**size, 1), *batch, *size), dt).Retain()
		}
	}
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		opt.ZeroGrad()
		loss := nn.MSELoss(model.Forward(in[0]), in[1], nil)
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	}
	if *captured {
		step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	}
	n := 0
	next := func() (*autograd.Variable, error) {
		n++
		return step(data[n%2][0], data[n%2][1])
	}
	run := func(steps int) error {
		for range steps {
			if _, err := next(); err != nil {
				return err
			}
		}
		return dev.Compute().Sync(ctx)
	}
	if err := run(*warmup); err != nil {
		return err
	}
	if err := pg.Barrier().Sync(ctx); err != nil {
		return err
	}
	stop, err := startProfile(pg.Rank())
	if err != nil {
		return err
	}
	start := time.Now()
	err = run(*steps)
	took := time.Since(start)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	r := result{Name: "goddp", Type: *dtype, Ranks: pg.Size(), StepMS: took.Seconds() * 1e3 / float64(*steps), PeakMiB: peak(dev, model)}
	if *stage > 0 {
		r.Name += fmt.Sprint("-zero", *stage)
	}
	if *captured {
		r.Name += "-captured"
	}
	for range losses {
		loss, err := next()
		if err != nil {
			return err
		}
		r.Losses = append(r.Losses, loss.Item())
	}
	if pg.Size() > 1 || *file != "" {
		trace := profile.Of(dev)
		trace.Start()
		if err := run(traced); err != nil {
			return err
		}
		if pg.Rank() == 0 {
			if r.ExposedMS, err = exposed(trace); err != nil {
				return err
			}
		}
	}
	if pg.Rank() > 0 {
		return nil
	}
	line, err := json.Marshal(r)
	fmt.Println(string(line))
	return err
}

// trained is the part of a model that the benchmark calls.
type trained interface {
	Forward(x *autograd.Variable) *autograd.Variable
	Stats() ddp.Stats
}

// optimizer is the part of an optimizer that a step calls.
type optimizer interface {
	ZeroGrad()
	Step() error
}

// wrap makes the ranks' modules one model, with its optimizer.
func wrap(net nn.Module, pg *comm.ProcessGroup) (trained, optimizer, error) {
	sgd := func(params []*nn.Parameter) (*optim.SGD, error) {
		return optim.NewSGD(params, &optim.SGDOptions{LR: 0.001})
	}
	opts := ddp.Options{BucketCapMB: *bucket, FirstBucketCapMB: *first}
	if *stage > 0 {
		return zero.New(net, pg, sgd, &zero.Options{Options: opts, Stage: *stage, Slots: *slots})
	}
	model, err := ddp.New(net, pg, &opts)
	if err != nil {
		return nil, nil, err
	}
	opt, err := sgd(model.Parameters())
	return model, opt, err
}

// startProfile starts the profile of rank 0, if one is wanted. It returns a function that ends it.
func startProfile(rank int) (stop func() error, err error) {
	if *profiled == "" || rank > 0 {
		return func() error { return nil }, nil
	}
	f, err := os.Create(*profiled)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// exposed returns how long the GPU communicated in a traced step while it computed nothing, as "goddp trace"
// says it.
func exposed(trace *profile.Recorder) (*float64, error) {
	dir, err := os.MkdirTemp("", "steps")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := cmp.Or(*file, filepath.Join(dir, "trace.json"))
	if err := trace.WriteFile(path, 0); err != nil {
		return nil, err
	}
	job, err := timeline.Read(path)
	if err != nil {
		return nil, err
	}
	ms := job.Report().Mean.Exposed.Seconds() * 1e3
	return &ms, nil
}

// peak returns the largest amount of device memory that was in use at once, in MiB. It adds the buckets,
// which the process group allocates.
func peak(dev device.Device, model trained) float64 {
	bytes := int(dev.Memory().Peak)
	for _, b := range model.Stats().Buckets {
		bytes += b.Padded
	}
	return float64(bytes) / (1 << 20)
}

func main() {
	flag.Parse()
	comm.Main(train)
}
