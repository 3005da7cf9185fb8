// Command checkpoint measures how much asynchronous saves slow down training, and how long a save takes
// until the checkpoint is durable.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./bench/checkpoint --dir /data/ckpt
//
// The model is a stack of linear layers with as many parameters as the smallest GPT-2, trained by
// AdamW: 1.5 GB of state in float32. The command prints one JSON object of medians: a step without
// saves, a step while a save runs, a step that begins a save, the time from the call of Save until
// the checkpoint is durable on all ranks, and the time that the ranks need to write and sync as many
// bytes to plain files.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var (
	dir    = flag.String("dir", "", "`folder` for the checkpoints, which are removed at the end")
	width  = flag.Int("width", 768, "inputs and outputs of a pair of layers; the first layer has four times as many outputs")
	pairs  = flag.Int("pairs", 26, "number of pairs of layers")
	batch  = flag.Int("batch", 8192, "number of rows of the input on each rank")
	steps  = flag.Int("steps", 40, "number of steps measured without saves, and again for each save")
	saves  = flag.Int("saves", 5, "number of saves")
	divide = flag.Bool("zero", false, "divide the optimizer's state among the ranks")
)

// result is the output. Times are medians in milliseconds.
type result struct {
	Ranks     int     `json:"ranks"`
	Bytes     int64   `json:"bytes"`
	Step      float64 `json:"step_ms"`
	Beginning float64 `json:"step_that_begins_a_save_ms"`
	During    float64 `json:"step_while_a_save_runs_ms"`
	Call      float64 `json:"call_of_save_ms"`
	Durable   float64 `json:"durable_ms"`
	Raw       float64 `json:"raw_write_ms"`
	Speed     float64 `json:"speed_of_raw"`      // Raw / Durable
	Slowdown  float64 `json:"slowdown_by_saves"` // During / Step
}

// job is the training that is measured.
type job struct {
	pg    *comm.ProcessGroup
	state checkpoint.State
	step  func() error
}

func newJob(pg *comm.ProcessGroup) (*job, error) {
	var modules []nn.Module
	for range *pairs {
		modules = append(modules, nn.Linear(*width, 4**width, nil), nn.ReLU(), nn.Linear(4**width, *width, nil))
	}
	net := nn.Sequential(modules...)
	if err := nn.Place(net, pg.Device(), 1); err != nil {
		return nil, err
	}
	var forward func(*autograd.Variable) *autograd.Variable
	var update func() error
	var forget func()
	j := &job{pg: pg}
	if *divide {
		model, opt, err := zero.New(net, pg, func(p []*nn.Parameter) (*optim.AdamW, error) { return optim.NewAdamW(p, nil) }, nil)
		if err != nil {
			return nil, err
		}
		forward, update, forget = model.Forward, opt.Step, opt.ZeroGrad
		j.state = checkpoint.State{Model: model, Optimizers: []optim.Optimizer{opt}}
	} else {
		model, err := ddp.New(net, pg, nil)
		if err != nil {
			return nil, err
		}
		opt, err := optim.NewAdamW(model.Parameters(), nil)
		if err != nil {
			return nil, err
		}
		forward, update, forget = model.Forward, opt.Step, opt.ZeroGrad
		j.state = checkpoint.State{Model: model, Optimizers: []optim.Optimizer{opt}}
	}
	x := autograd.Zeros(pg.Device(), net.Parameters()[0].DType(), *batch, *width)
	y := autograd.Zeros(pg.Device(), net.Parameters()[0].DType(), *batch, *width)
	j.step = func() error {
		if err := nn.MSELoss(forward(x), y, nil).Backward(nil); err != nil {
			return err
		}
		err := update()
		forget()
		return err
	}
	return j, nil
}

// timed returns how long f and the work that it enqueues on the device take, in milliseconds.
func (j *job) timed(ctx context.Context, f func() error) (float64, error) {
	start := time.Now()
	err := f()
	if err == nil {
		err = j.pg.Device().Compute().Sync(ctx)
	}
	return since(start), err
}

func measure(ctx context.Context) (err error) {
	if *dir == "" || *steps < 1 || *saves < 1 {
		return errors.New("want --dir, and 1 or more of --steps and --saves")
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	j, err := newJob(pg)
	if err != nil {
		return err
	}
	m, err := checkpoint.Open(ctx, pg, *dir, &checkpoint.Options{Keep: 1, Async: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for range 3 {
		if err := j.step(); err != nil {
			return err
		}
	}
	if err := errors.Join(m.Save(ctx, 0, j.state), m.Wait(ctx)); err != nil { // the first save allocates memory and is not measured
		return err
	}
	var r measurements
	for range *steps {
		t, err := j.timed(ctx, j.step)
		if err != nil {
			return err
		}
		r.alone = append(r.alone, t)
	}
	for n := range *saves {
		if err := j.save(ctx, m, n+1, &r); err != nil {
			return err
		}
	}
	bytes := m.Stats().Bytes
	for range 3 {
		t, err := rawWrite(ctx, pg, bytes)
		if err != nil {
			return err
		}
		r.raw = append(r.raw, t)
	}
	all, err := comm.AllGatherInts(ctx, pg, []int64{bytes})
	if err != nil || pg.Rank() > 0 {
		return err
	}
	out := result{
		Ranks: pg.Size(), Step: median(r.alone), Beginning: median(r.beginning), During: median(r.during),
		Call: median(r.call), Durable: median(r.durable), Raw: median(r.raw),
	}
	for _, n := range all {
		out.Bytes += n[0]
	}
	out.Speed, out.Slowdown = out.Raw/out.Durable, out.During/out.Step
	return json.NewEncoder(os.Stdout).Encode(out)
}

// measurements holds measured times in milliseconds, one slice for each median of result.
type measurements struct{ alone, beginning, during, call, durable, raw []float64 }

// save starts a save and runs training steps, the same number on all ranks, while it runs.
func (j *job) save(ctx context.Context, m *checkpoint.Manager, step int, r *measurements) error {
	start := time.Now()
	t, err := j.timed(ctx, func() error {
		if err := m.Save(ctx, step, j.state); err != nil {
			return err
		}
		r.call = append(r.call, since(start))
		return j.step()
	})
	if err != nil {
		return err
	}
	r.beginning = append(r.beginning, t)
	var begins, times []float64
	for range *steps {
		begins = append(begins, since(start))
		t, err := j.timed(ctx, j.step)
		if err != nil {
			return err
		}
		times = append(times, t)
	}
	if err := m.Wait(ctx); err != nil {
		return err
	}
	durable := float64(m.Stats().Durable) / 1e6
	r.durable = append(r.durable, durable)
	for i, at := range begins {
		if at < durable {
			r.during = append(r.during, times[i])
		}
	}
	return nil
}

// rawWrite returns how long the ranks take to write n bytes each, at the same time, and to sync
// them.
func rawWrite(ctx context.Context, pg *comm.ProcessGroup, n int64) (float64, error) {
	path := filepath.Join(*dir, fmt.Sprint("raw-", pg.Rank()))
	defer os.Remove(path)
	chunk := make([]byte, 16<<20)
	for i := range chunk {
		chunk[i] = byte(i * i >> 3)
	}
	if err := pg.Barrier().Sync(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for left := n; left > 0 && err == nil; left -= int64(len(chunk)) {
		_, err = f.Write(chunk[:min(left, int64(len(chunk)))])
	}
	err = errors.Join(err, f.Sync())
	if err := comm.Agree(ctx, pg, err); err != nil { // waits until all ranks have synced
		return 0, err
	}
	return since(start), nil
}

// since returns the time since t in milliseconds.
func since(t time.Time) float64 { return float64(time.Since(t)) / 1e6 }

// median sorts x and returns its median, or 0 if x is empty.
func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[len(x)/2]
}

func main() {
	flag.Parse()
	comm.Main(measure)
}
