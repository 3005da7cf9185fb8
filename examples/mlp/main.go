// Command mlp trains a stack of linear layers with ReLU between them on random
// data: mean squared error, plain SGD.
//
//	go run ./cmd/golaunch --nproc-per-node 4 ./examples/mlp --size 256 --batch 32 --steps 10
//
// A sample is a function of the seed and of its number in the global batch. So N ranks with batch B train
// on the samples of one process with batch N·B, and print the same losses. After SIGINT or SIGTERM all
// ranks stop after the same step.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
	"github.com/goddp/goddp/progress"
)

var (
	size   = flag.Int("size", 4000, "width of every layer")
	batch  = flag.Int("batch", 1000, "number of samples per rank and step")
	layers = flag.Int("layers", 3, "number of linear layers")
	steps  = flag.Int("steps", 10, "number of training steps")
	lr     = flag.Float64("lr", 0.001, "learning rate")
	bucket = flag.Float64("bucket-cap-mb", 25, "size of a gradient bucket in `MiB`")
	dtype  = flag.String("dtype", "float32", "type of parameters and data: float32, or bfloat16 on a GPU")
	hook   = flag.String("hook", "", "`hook` that reduces gradients instead of an all-reduce: bf16, fp16, int8, powersgd or noop")
	seed   = flag.Uint64("seed", 0, "seed of the parameters and the data")
	trace  = flag.String("trace", "", "write a trace to `FILE`: see goddp trace")
	asJSON = flag.Bool("json", false, "print JSON lines")
)

var types = map[string]device.DType{"float32": device.Float32, "bfloat16": device.BFloat16}

// hooks are the hooks by the names that -hook takes. PowerSGD starts with the first step, so that all
// steps are measured alike.
var hooks = map[string]func() (reducer.Hook, error){
	"":     func() (reducer.Hook, error) { return nil, nil },
	"bf16": func() (reducer.Hook, error) { return commhook.BF16(nil), nil },
	"fp16": func() (reducer.Hook, error) { return commhook.FP16(nil), nil },
	"int8": func() (reducer.Hook, error) { return commhook.Int8(), nil },
	"powersgd": func() (reducer.Hook, error) {
		return commhook.NewPowerSGD(&commhook.PowerSGDOptions{Rank: 4, StartAfter: -1})
	},
	"noop": func() (reducer.Hook, error) { return commhook.Noop(), nil },
}

// network returns the model.
func network() nn.Module {
	var modules []nn.Module
	for i := range *layers {
		if i > 0 {
			modules = append(modules, nn.ReLU())
		}
		modules = append(modules, nn.Linear(*size, *size, &nn.LinearOptions{DType: types[*dtype]}))
	}
	return nn.Sequential(modules...)
}

func train(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	dev, rank := pg.Device(), pg.Rank()
	if *dtype == "bfloat16" && dev.String() == "cpu" {
		return errors.New("the CPU computes only in float32 and float64")
	}
	net := network()
	if err := nn.Place(net, dev, *seed); err != nil {
		return err
	}
	reduce, err := hooks[*hook]()
	if err != nil {
		return err
	}
	model, err := ddp.New(net, pg, &ddp.Options{BucketCapMB: *bucket, Hook: reduce})
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: *lr})
	if err != nil {
		return err
	}
	data, err := newData(pg)
	if err != nil {
		return err
	}
	recorder := profile.Of(dev)
	if *trace != "" {
		recorder.Start()
	}
	for step := 0; step < *steps && !model.Stopping(); step++ {
		start := time.Now()
		if err := data.load(ctx, step); err != nil {
			return err
		}
		start = lap(recorder, "data", start)
		if err := pg.Barrier().Sync(ctx); err != nil { // so that the step's time includes no waiting for a slower rank
			return err
		}
		start = lap(recorder, "barrier", start)
		loss := nn.MSELoss(model.Forward(data.x), data.y, nil)
		if err := loss.Backward(nil); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		if err := dev.Compute().Sync(ctx); err != nil {
			return err
		}
		took := time.Since(start)
		// The mean over the global batch is the mean of the ranks' means.
		if err := pg.With(&comm.CallOptions{Name: "loss"}).AllReduce(loss.Tensor(), comm.Avg).Wait(ctx); err != nil {
			return err
		}
		if rank == 0 {
			fields := map[string]any{"step": step, "loss": number(loss.Item()), "ms": float64(took.Microseconds()) / 1e3, "device_bytes": dev.Memory().Held()}
			for _, v := range progress.Process() {
				fields[v.Name] = v.Number
			}
			report(fields, fmt.Sprintf("step %d loss %.9g", step, loss.Item()))
		}
	}
	sum, err := digest(ctx, model.Parameters())
	if err != nil {
		return err
	}
	report(map[string]any{"rank": rank, "params_sha256": sum, "peak_mib": peak(dev, model)}, fmt.Sprintf("rank %d: params sha256 %s", rank, sum))
	if *trace == "" {
		return nil
	}
	if rank == 0 {
		o := recorder.Overlap()
		report(map[string]any{"reductions": o.Reductions, "hidden_percent": o.Percent()}, fmt.Sprintf("rank 0: %v", o))
	}
	return recorder.WriteFile(profile.RankPath(*trace, rank), rank)
}

// lap records what the host has done since a time, for the causes of gaps that goddp trace names. It returns the time now.
func lap(recorder *profile.Recorder, what string, since time.Time) (now time.Time) {
	now = time.Now()
	recorder.Add(profile.Span{Track: profile.Host, Name: what, Begin: profile.At(since), End: profile.At(now)})
	return now
}

// peak returns the largest amount of device memory that was in use at once, in MiB. It adds the buckets,
// which the process group allocates.
func peak(dev device.Device, model *ddp.Model) float64 {
	bytes := int(dev.Memory().Peak)
	for _, b := range model.Stats().Buckets {
		bytes += b.Padded
	}
	return float64(bytes) / (1 << 20)
}

// report prints text, or fields as JSON with -json.
func report(fields map[string]any, text string) {
	if *asJSON {
		line, err := json.Marshal(fields)
		if err != nil {
			panic(err) // the caller must pass floats through number
		}
		text = string(line)
	}
	fmt.Println(text)
}

// number returns v as a value that JSON can hold: a string if v is not finite.
func number(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprint(v)
	}
	return v
}

// data holds this rank's part of the global batch.
type data struct {
	dev         device.Device
	first, each uint64 // this rank's first sample in a global batch; number of samples of a global batch
	x, y        *autograd.Variable
}

func newData(pg *comm.ProcessGroup) (*data, error) {
	d := &data{dev: pg.Device(), first: uint64(pg.Rank() * *batch), each: uint64(pg.Size() * *batch)}
	dt := types[*dtype]
	bytes := *batch * *size * dt.Size()
	for _, v := range []**autograd.Variable{&d.x, &d.y} {
		buf, err := d.dev.Alloc(bytes)
		if err != nil {
			return nil, err
		}
		*v = autograd.FromTensor(d.dev, device.NewTensor(buf, dt, *batch, *size))
	}
	return d, nil
}

// load draws the samples of a step and waits until they are in device memory. Inputs and targets have a
// sequence of random numbers each; value k of a sample is number sample·size + k of its sequence.
func (d *data) load(ctx context.Context, step int) error {
	at := (uint64(step)*d.each + d.first) * uint64(*size)
	for i, v := range []*autograd.Variable{d.x, d.y} {
		sequence := *seed + uint64(i+1)<<32
		v.BumpVersion()
		if err := kernels.Of(d.dev).Normal(d.dev.Compute(), v.Tensor(), 0, 1, sequence, at); err != nil {
			return err
		}
	}
	return d.dev.Compute().Sync(ctx)
}

// digest returns the SHA-256 of all parameters' bytes.
func digest(ctx context.Context, params []*nn.Parameter) (string, error) {
	sum := sha256.New()
	for _, p := range params {
		t, dev := p.Var().Tensor(), p.Var().Device()
		data := make([]byte, t.Bytes())
		if err := dev.CopyOut(ctx, dev.Compute(), data, t.Buf); err != nil {
			return "", err
		}
		sum.Write(data)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

func main() {
	flag.Parse()
	for name, bad := range map[string]bool{
		"size": *size < 1, "batch": *batch < 1, "layers": *layers < 1, "steps": *steps < 0, "bucket-cap-mb": !(*bucket >= 0), "lr": !(*lr >= 0), "dtype": types[*dtype] == device.Invalid,
		"hook": hooks[*hook] == nil,
	} {
		if bad {
			f := flag.Lookup(name)
			fmt.Fprintf(os.Stderr, "mlp: --%s %q is invalid; --%s: %s\n", name, f.Value, name, f.Usage)
			os.Exit(2)
		}
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "mlp: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	comm.Main(train)
}
