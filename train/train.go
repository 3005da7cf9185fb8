package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/progress"
)

// Model is what Run needs of one: [*ddp.Model] and [*zero.Model] have it.
type Model interface {
	nn.Model
	NoSync(f func() error) error
	Stopping() bool
}

// Optimizer is what Run needs of one: those of package optim have it.
type Optimizer interface {
	checkpoint.Optimizer
	SetLR(lr float64)
	Step() error
	ZeroGrad()
}

// Config says what is trained, and how. All ranks give the same, but for Log, which is
// rank 0's. What is not there (nil, 0, "") is not done, unless said otherwise.
type Config struct {
	Model     Model
	Optimizer Optimizer
	Data      *data.Loader
	// Epochs and MaxSteps bound the run: it ends after so many epochs, or after so many
	// steps, whichever comes first. At least one of them is not 0.
	Epochs, MaxSteps int
	// Loss computes the loss of a batch, a scalar.
	Loss func(b *data.Batch) *autograd.Variable

	// LR is the learning rate of a step; nil leaves the optimizer's.
	LR schedule.Schedule
	// Accumulate is how many batches make a step; 0: 1.
	Accumulate int
	// ClipNorm is what the gradients' norm is clipped to.
	ClipNorm float64

	// Evaluate is called on all ranks after each epoch, and at the end of the run. What it
	// returns on rank 0 is logged.
	Evaluate func(ctx context.Context) ([]progress.Value, error)
	// Log is the file that JSON lines are appended to: see package progress.
	Log string
	// LogEvery is the number of steps from one line to the next; 0: 100.
	LogEvery int

	// Checkpoints is the folder to go on from, if there is a checkpoint in it, and to
	// save to. All ranks see it.
	Checkpoints string
	// SaveEvery is the number of steps from one checkpoint to the next. Run also saves
	// after each epoch, where it is asked to stop, and at its end.
	SaveEvery int
	// Keep is how many checkpoints stay; 0: 3.
	Keep int
	// Values are the program's own to save and load beside what Run knows of, which is the
	// model, the optimizer, the place in the data and the device's random generator: see
	// [checkpoint.State].
	Values map[string]any
}

// Steps is how many steps the run has.
func (c *Config) Steps() int {
	steps := c.Epochs * c.Data.Steps() / max(c.Accumulate, 1)
	if c.Epochs == 0 || c.MaxSteps > 0 && c.MaxSteps < steps {
		return c.MaxSteps
	}
	return steps
}

// Run trains from the beginning, or from the latest checkpoint, until the last step or
// until all ranks are asked to stop. All ranks call it.
func Run(ctx context.Context, pg *comm.ProcessGroup, c Config) (err error) {
	if pg == nil {
		return fmt.Errorf("train: %w", comm.ErrNoGroup)
	}
	if c.Epochs < 0 || c.MaxSteps < 0 || c.Epochs == 0 && c.MaxSteps == 0 || c.Accumulate < 0 || c.ClipNorm < 0 || c.SaveEvery < 0 || c.LogEvery < 0 {
		return fmt.Errorf("train: Epochs %d, MaxSteps %d, Accumulate %d, ClipNorm %v, SaveEvery %d and LogEvery %d, want at least 1 epoch or step and nothing below 0",
			c.Epochs, c.MaxSteps, c.Accumulate, c.ClipNorm, c.SaveEvery, c.LogEvery)
	}
	r := run{Config: c, pg: pg, total: c.Steps()}
	if r.total == 0 {
		return fmt.Errorf("train: Epochs %d of %d batches each are not one step of Accumulate %d batches", c.Epochs, c.Data.Steps(), c.Accumulate)
	}
	r.Accumulate = max(r.Accumulate, 1)
	if err := r.resume(ctx); err != nil {
		return err
	}
	if r.saver != nil {
		defer func() { err = errors.Join(err, r.saver.Close()) }()
	}
	every := r.LogEvery
	if every == 0 {
		every = 100
	}
	r.meter, err = progress.New(pg.Rank(), progress.Options{
		Steps: r.total, First: r.step, Every: every, File: c.Log, DeviceBytes: func() int64 { return pg.Device().Memory().Held() },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.meter.Close()) }()
	if r.step >= r.total && r.at.Sample == 0 {
		return nil
	}
	// A checkpoint of the last step within an epoch may have been saved before the evaluation.
	for epoch := r.at.Epoch; ; epoch++ {
		if stopped, err := r.epoch(ctx, epoch); stopped || err != nil || r.step >= r.total {
			return err
		}
	}
}

// run is a run under way.
type run struct {
	Config
	pg    *comm.ProcessGroup
	meter *progress.Meter
	saver *checkpoint.Manager // nil: no checkpoints
	state checkpoint.State
	at    data.Position // behind the last step
	step  int           // steps that are over
	total int           // steps of the run
	saved int           // the step of the last checkpoint

	gathered int // batches whose gradients are there, of the step that is not over
}

// resume opens the folder of the checkpoints and loads the latest, if there are any.
func (r *run) resume(ctx context.Context) (err error) {
	if r.Checkpoints == "" {
		return nil
	}
	keep := r.Keep
	if keep == 0 {
		keep = 3
	}
	if r.saver, err = checkpoint.Open(r.pg, r.Checkpoints, checkpoint.Options{Keep: keep, Async: true}); err != nil {
		return err
	}
	values := map[string]any{"position": &r.at, "generator": autograd.Generator(r.pg.Device())}
	for name, v := range r.Values {
		values[name] = v
	}
	r.state = checkpoint.State{Model: r.Model, Optimizers: []checkpoint.Optimizer{r.Optimizer}, Values: values}
	r.step, err = r.saver.Resume(ctx, r.state)
	if err == nil {
		r.saved = r.step
		err = r.Data.Resume(r.at)
	}
	if err != nil {
		err = errors.Join(err, r.saver.Close())
	}
	return err
}

// epoch trains on the rest of one epoch, and evaluates. It ends earlier at the run's last step.
// It returns true if all ranks are asked to stop.
func (r *run) epoch(ctx context.Context, epoch int) (stopped bool, err error) {
	behind := data.Position{Epoch: epoch + 1}
	for b, err := range r.Data.Epoch(ctx, epoch) {
		if err != nil {
			return false, err
		}
		if r.step >= r.total { // in the middle of the epoch
			behind = r.at
			break
		}
		r.gathered++
		loss, err := r.backward(b, r.gathered < r.Accumulate)
		if err != nil {
			return false, err
		}
		if r.gathered < r.Accumulate {
			continue
		}
		r.gathered, r.at = 0, b.After
		if err := r.update(); err != nil {
			return false, err
		}
		if r.meter.Step(len(b.Indices) * r.pg.Size() * r.Accumulate) {
			if err := r.log(ctx, loss, len(b.Indices)); err != nil {
				return false, err
			}
		}
		if r.Model.Stopping() {
			return true, r.save(ctx)
		}
		if r.SaveEvery > 0 && r.step%r.SaveEvery == 0 {
			if err := r.save(ctx); err != nil {
				return false, err
			}
		}
	}
	if r.Evaluate != nil {
		values, err := r.Evaluate(ctx)
		if err != nil {
			return false, err
		}
		r.meter.Note(append([]progress.Value{progress.V("epoch", float64(epoch+1))}, values...)...)
	}
	if r.gathered > 0 { // the next epoch's first batches complete the step
		return false, nil
	}
	r.at = behind
	return false, r.save(ctx)
}

// backward computes the gradients of a batch, which are reduced unless more batches
// follow within the step.
func (r *run) backward(b *data.Batch, more bool) (loss *autograd.Variable, err error) {
	pass := func() error {
		loss = r.Loss(b)
		if r.Accumulate == 1 {
			return loss.Backward()
		}
		return autograd.MulScalar(loss, 1/float64(r.Accumulate)).Backward()
	}
	if more {
		return loss, r.Model.NoSync(pass)
	}
	err = pass()
	return loss, err
}

// update makes a step of the gradients.
func (r *run) update() error {
	if r.LR != nil {
		r.Optimizer.SetLR(r.LR(r.step))
	}
	if r.ClipNorm > 0 {
		if _, err := r.clip(); err != nil {
			return err
		}
	}
	if err := r.Optimizer.Step(); err != nil {
		return err
	}
	r.Optimizer.ZeroGrad()
	r.step++
	return nil
}

// clip clips the gradients' norm. An optimizer whose ranks have parts of the gradients
// has a method of its own for it.
func (r *run) clip() (*autograd.Variable, error) {
	if o, ok := r.Optimizer.(interface {
		ClipGradNorm(max float64) (*autograd.Variable, error)
	}); ok {
		return o.ClipGradNorm(r.ClipNorm)
	}
	return optim.ClipGradNorm(r.Model.Parameters(), r.ClipNorm)
}

// log shows the mean loss of all ranks' last batches.
func (r *run) log(ctx context.Context, loss *autograd.Variable, samples int) error {
	value, err := loss.TryItem(ctx)
	if err != nil {
		return err
	}
	all, err := metrics.Reduce(ctx, r.pg, metrics.Mean(value, samples))
	if err != nil {
		return err
	}
	values := []progress.Value{progress.V("loss", all[0].Value)}
	if r.LR != nil {
		values = append(values, progress.V("lr", r.LR(r.step-1)))
	}
	r.meter.Log(values...)
	return nil
}

// save saves a checkpoint, unless there is one of this step.
func (r *run) save(ctx context.Context) error {
	if r.saver == nil || r.saved == r.step {
		return nil
	}
	r.saved = r.step
	return r.saver.Save(ctx, r.step, r.state)
}
