package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
	"github.com/goddp/goddp/progress"
)

// Run trains from the beginning, or from the latest checkpoint, until the last step, or until all
// ranks stop on request. All ranks call it.
func Run(ctx context.Context, pg *comm.ProcessGroup, c *Config) (err error) {
	if pg == nil {
		return fmt.Errorf("train: %w", comm.ErrNoGroup)
	}
	if c.Model == nil || c.Optimizer == nil || c.Data == nil || c.Loss == nil {
		return fmt.Errorf("train: Model is set: %v, Optimizer: %v, Data: %v, Loss: %v; want all of them", c.Model != nil, c.Optimizer != nil, c.Data != nil, c.Loss != nil)
	}
	if c.Epochs < 0 || c.MaxSteps < 0 || c.Epochs == 0 && c.MaxSteps == 0 || c.Accumulate < 0 || !(c.ClipNorm >= 0) || c.SaveEvery < 0 || c.LogEvery < 0 || c.EvaluateEvery < 0 {
		return fmt.Errorf("train: Epochs %d, MaxSteps %d, Accumulate %d, ClipNorm %v, SaveEvery %d, LogEvery %d and EvaluateEvery %d, want Epochs or MaxSteps of at least 1 and no negative value",
			c.Epochs, c.MaxSteps, c.Accumulate, c.ClipNorm, c.SaveEvery, c.LogEvery, c.EvaluateEvery)
	}
	if c.Best != "" && c.Evaluate == nil || c.Best == "" && c.Patience > 0 || c.Patience < 0 || !(c.MinDelta >= 0) || c.Mode != Min && c.Mode != Max {
		return fmt.Errorf("train: Best is %q, Mode %d, Patience %d, MinDelta %v, and Evaluate is set: %v; want Evaluate with Best, Best with Patience, Min or Max, and no negative value",
			c.Best, c.Mode, c.Patience, c.MinDelta, c.Evaluate != nil)
	}
	if global := c.Data.Sampler().GlobalBatch; global > 0 && c.Accumulate > 1 {
		return fmt.Errorf("train: Accumulate is %d, but GlobalBatch of Data is %d, which already sets the samples of a step: want Accumulate 0 or 1", c.Accumulate, global)
	}
	if c.SumLoss && (!c.Data.IsLabeled() || c.Accumulate > 1) {
		return fmt.Errorf("train: SumLoss: the data set of Data is Labeled: %v, Accumulate is %d: want true, and 0 or 1 with a GlobalBatch instead", c.Data.IsLabeled(), c.Accumulate)
	}
	if c.Data.Sampler().LastBatch == data.Uneven {
		return errors.New("train: LastBatch of Data is Uneven, with which a rank may have fewer steps than another: want Pad or Drop")
	}
	inner := c.Optimizer
	if ema, ok := inner.(*optim.EMA); ok { // SetLR of an EMA calls SetLR of the inner optimizer
		inner = ema.Optimizer
	}
	if _, ok := inner.(optim.LRSetter); !ok && c.LR != nil {
		return fmt.Errorf("train: LR is set, but %T has no method SetLR", inner)
	}
	r := &run{Config: *c, pg: pg, evaluated: never, standing: standing{Value: c.Best, Mode: c.Mode}}
	r.LogEvery = cmp.Or(r.LogEvery, 100)
	for _, name := range runsOwn {
		if _, ok := c.Values[name]; ok {
			return fmt.Errorf("train: Values has the key %q, which Run itself uses: choose another name", name)
		}
	}
	r.Accumulate = max(r.Accumulate, 1)
	r.before, _ = c.Optimizer.Committed()
	if err := r.moveTo(data.Position{}); err != nil {
		return err
	}
	r.makeSteps()
	values := map[string]any{"before": &r.before}
	maps.Copy(values, c.Values)
	e := elastic.Config{State: checkpoint.State{Model: c.Model, Optimizers: []optim.Optimizer{c.Optimizer}, Values: values}, Data: c.Data}
	if c.Checkpoints != "" {
		e.Restore = r.resume
	}
	return elastic.Run(ctx, pg, &e, r.attempt)
}

// runsOwn are the names of values that Run uses itself.
var runsOwn = []string{"position", "generator", "before"}

// attempt trains from the last committed step on, until the run ends or the group fails. The members of the group may
// differ from those of the attempt before.
func (r *run) attempt(ctx context.Context) (err error) {
	committed, _ := r.Optimizer.Committed()
	r.step, r.gathered, r.isEnded = committed-r.before, 0, false
	if r.pg.Survives() {
		r.position = r.Data.Position()
	}
	r.total = r.stepsAt(r.step, r.position)
	defer func() { err = errors.Join(err, r.closeSaver()) }()
	if r.Checkpoints != "" && r.saver == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	r.meter, err = progress.New(r.pg.Rank(), &progress.Options{
		Steps: r.total, First: r.step, Every: r.LogEvery, File: r.Log, DeviceBytes: func() int64 { return r.pg.Device().Memory().Held() },
		Waited: r.Model.Waited, PeakFLOPS: r.peak,
	})
	if err == nil {
		defer func() {
			if err := r.meter.Close(); err != nil { // the run has what it was for: its model
				r.pg.Log().Warn("train: the log is incomplete", "cause", err)
			}
		}()
		err = tryFile("Trace", r.tracePath())
		if r.pg.Rank() == 0 {
			err = errors.Join(err, tryFile("Weights", r.Weights))
		}
	}
	if err := comm.Agree(ctx, r.pg, err); err != nil {
		return err
	}
	if err := r.compare(ctx); err != nil {
		return err
	}
	stopped, err := r.train(ctx)
	if err == nil {
		err = r.finish(ctx)
	}
	if stopped || err != nil || r.Weights == "" {
		return err
	}
	return r.Model.OnRank(0, func() error { return checkpoint.SaveWeights(ctx, r.Weights, r.Model) })
}

// compare makes the ranks agree on what was done after the last step: an evaluation whose end all have seen that took
// part in it, with the standing after it, and a checkpoint that is complete.
//
// It returns an error on all ranks if their samplers, their next learning rates or their plans differ. Of the samplers, only
// the rank may differ, and the seed if the samples are not shuffled. In a job that survives the loss of ranks, only the ranks
// that differ from rank 0 get the error, so that the others go on.
func (r *run) compare(ctx context.Context) error {
	type settings struct {
		Sampler          data.Sampler
		LR               float64
		Plan             plan
		Evaluated, Saved int
		Standing         standing
	}
	mine := settings{Sampler: r.Data.Sampler(), Plan: r.plan(), Evaluated: r.evaluated, Standing: r.standing}
	if r.saver != nil && r.pg.Rank() == 0 {
		if last, err := checkpoint.List(r.Checkpoints); err == nil && len(last) > 0 && last[0].Step == r.step {
			mine.Saved = r.step
		}
	}
	if r.LR != nil {
		mine.LR = r.LR(r.step)
	}
	all, err := comm.AllGatherObject(ctx, r.pg, mine)
	if err != nil {
		return err
	}
	r.saved, r.evaluated, r.standing = all[0].Saved, all[0].Evaluated, all[0].Standing
	for rank, its := range all {
		if its.Evaluated < r.evaluated {
			r.evaluated, r.standing = its.Evaluated, its.Standing
		}
		if r.pg.Survives() && rank != r.pg.Rank() {
			continue
		}
		s, want := its.Sampler, all[0].Sampler
		want.Rank = rank
		if !s.Shuffle {
			want.Seed = s.Seed
		}
		if s != want {
			return fmt.Errorf("train: the loader of rank %d has %+v, the loader of rank 0 has %+v: data set lengths and loader options must be equal", rank, s, all[0].Sampler)
		}
		if math.Float64bits(its.LR) != math.Float64bits(all[0].LR) { // Step refuses a NaN
			return fmt.Errorf("train: LR(%d) is %v on rank %d and %v on rank 0: want the same schedule on all ranks", r.step, its.LR, rank, all[0].LR)
		}
		if its.Plan != all[0].Plan {
			return fmt.Errorf("train: Config has %+v on rank %d and %+v on rank 0: want the same on all ranks", its.Plan, rank, all[0].Plan)
		}
	}
	if r.evaluated == never {
		r.evaluated = -1 // from now on only ranks that join later have no say
	}
	return nil
}

// plan has the fields of a Config, or whether they are set, that decide what a rank calls and how it updates the model.
type plan struct {
	Epochs, MaxSteps, Accumulate, EvaluateEvery, LogEvery, SaveEvery, Patience int
	ClipNorm                                                                   float64
	Best                                                                       string
	LR, Evaluate, Checkpoints, Weights, SumLoss, RequireFinite                 bool
}

func (c *Config) plan() plan {
	return plan{
		c.Epochs, c.MaxSteps, c.Accumulate, c.EvaluateEvery, c.LogEvery, c.SaveEvery, c.Patience, c.ClipNorm, c.Best,
		c.LR != nil, c.Evaluate != nil, c.Checkpoints != "", c.Weights != "", c.SumLoss, c.RequireFinite,
	}
}

// tryFile returns an error if a file cannot be made at path, the value of a field of Config. Run calls it first,
// so that hours of training do not end with this error.
func tryFile(field, path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("train: %s: %s is a folder, want the name of a file", field, path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".try-*")
	if err != nil {
		return fmt.Errorf("train: %s: cannot create a file in the folder of %s: %w", field, path, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// train makes the remaining steps. It returns true if all ranks stop on request.
func (r *run) train(ctx context.Context) (isStopped bool, err error) {
	if r.step >= r.total && r.position.Sample == 0 {
		return false, nil
	}
	if k, ok := r.Optimizer.(optim.LRKeeper); ok && r.LR != nil {
		defer k.KeepLR()()
	}
	r.Optimizer.ZeroGrad() // the first step must not use earlier gradients
	r.work.skip(r.pg.Device())
	if r.Trace != "" && r.traceAt == 0 {
		r.recorder, r.traceAt = profile.Of(r.pg.Device()), r.step+10
	}
	defer func() { err = errors.Join(err, r.finishTrace(ctx, err)) }()
	if err := r.finishStep(ctx); err != nil { // a loss may have interrupted it
		return false, err
	}
	// If the checkpoint was saved at the last step of the run, in the middle of an epoch, its evaluation may be
	// missing. So epoch runs at least once.
	for !r.isEnded && !r.isPatienceOver() {
		if stopped, err := r.epoch(ctx); stopped || err != nil || r.step >= r.total {
			return stopped, err
		}
	}
	if r.isPatienceOver() && r.pg.Rank() == 0 {
		r.pg.Log().Info("train: the run ends early, because no evaluation was better", "value", r.Best, "best", r.standing.Best, "step", r.standing.BestStep, "evaluations", r.standing.Waited)
	}
	return false, nil
}

// never is a step that no run comes to.
const never = math.MaxInt

// run is the state of one Run.
type run struct {
	Config
	pg       *comm.ProcessGroup
	meter    *progress.Meter
	saver    *checkpoint.Manager // nil: there are no checkpoints
	state    checkpoint.State
	position data.Position // the position after the batches of the last step
	before   int           // the number of steps that the optimizer had committed before the run's first one
	step     int           // the number of steps made
	total    int           // the number of steps of the run
	saved    int           // the step of the last checkpoint
	// evaluated is the step after which Evaluate was called last, or never.
	evaluated int
	standing  standing
	hasWarned bool // whether a loss that is not finite was logged

	wantsEnd bool   // a callback of this rank has ended the run
	failed   error  // the errors of callbacks
	isEnded  bool   // the ranks have agreed that the run ends
	told     string // the checkpoint that OnCheckpoint was called for last

	recorder  *profile.Recorder // nil: nothing is traced, or the trace is written
	traceAt   int               // the step that the trace starts with
	isTracing bool
	lapped    time.Time // when the last part of a traced step ended
	wasOn     bool      // whether the program itself was recording when the trace started

	work work               // the operations of the steps
	norm *autograd.Variable // the norm of the step's gradients; nil if it is not known

	gathered int     // the number of batches whose gradients are accumulated for the next step
	weight   float64 // the factor of the loss of the batch
	share    data.Share
	// backward computes the loss of a batch, whose fields are `in`, and adds its gradients. complete also updates
	// the parameters.
	backward, complete func(in ...*autograd.Variable) (loss *autograd.Variable, err error)
}

// makeSteps sets backward and complete.
func (r *run) makeSteps() {
	r.backward = func(in ...*autograd.Variable) (*autograd.Variable, error) {
		if r.SumLoss { // the weight differs from step to step, and is the last input
			in, last := in[:len(in)-1], in[len(in)-1]
			loss := r.Loss(&data.Batch{Vars: in, Share: r.share})
			r.lap(telemetry.Forward)
			return loss, autograd.Mul(loss, autograd.Cast(last, loss.DType())).Backward(nil)
		}
		weight := r.weight
		if c := capture.Of(r.pg.Device()); c != nil {
			c.Require(func() bool { return r.weight == weight })
		}
		loss := r.Loss(&data.Batch{Vars: in, Share: r.share})
		r.lap(telemetry.Forward)
		if weight == 1 {
			return loss, loss.Backward(nil)
		}
		return loss, autograd.MulScalar(loss, weight).Backward(nil)
	}
	backward := r.backward
	r.complete = func(in ...*autograd.Variable) (*autograd.Variable, error) {
		passes := r.Model.Passes()
		loss, err := backward(in...)
		if err != nil {
			return nil, err
		}
		if r.Model.Passes() == passes {
			return nil, fmt.Errorf("train: rank %d: the gradients were not averaged, because Loss did not go through Model: call Forward of Model, not of the module that it wraps", r.pg.Rank())
		}
		r.lap(telemetry.Backward)
		return loss, r.update()
	}
	if r.Captured && !capture.IsCapturable(r.Optimizer) {
		r.pg.Log().Warn("train: steps run uncaptured", "cause", fmt.Sprintf("%T does not take part in captured steps", r.Optimizer))
	} else if r.Captured {
		dev := r.pg.Device()
		r.backward, r.complete = autograd.Capture(dev, r.backward, nil), autograd.Capture(dev, r.complete, nil)
	}
}

// open opens the folder of the checkpoints.
func (r *run) open(ctx context.Context) (err error) {
	keep := r.Keep
	if keep == 0 {
		keep = 3
	}
	r.saver, err = checkpoint.Open(ctx, r.pg, r.Checkpoints, &checkpoint.Options{Keep: keep, RequireFinite: r.RequireFinite, Async: true})
	values := map[string]any{"position": r.place(), "generator": autograd.Generator(r.pg.Device())}
	maps.Copy(values, r.Values)
	r.state = checkpoint.State{
		Model: r.Model, Optimizers: []optim.Optimizer{r.Optimizer}, Values: values,
		RankValues: map[string]any{"generator": values["generator"]}, // ranks with more samples have drawn more random numbers
	}
	return err
}

// closeSaver closes the folder of the checkpoints, if it is open.
func (r *run) closeSaver() error {
	if r.saver == nil {
		return nil
	}
	saver := r.saver
	r.saver = nil
	return saver.Close()
}

// resume opens the folder of the checkpoints and loads the latest one, if there is any.
func (r *run) resume(ctx context.Context) (err error) {
	if err := errors.Join(r.closeSaver(), r.open(ctx)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.closeSaver())
		}
	}()
	fresh := standing{Value: r.Best, Mode: r.Mode}
	r.standing = fresh
	step, err := r.saver.Resume(ctx, r.state)
	if err != nil || step == 0 {
		return err
	}
	r.before, r.evaluated = 0, never
	if r.standing.Value != r.Best || r.standing.Mode != r.Mode {
		r.standing = fresh
	}
	if err := r.checkPosition(); err != nil {
		return err
	}
	if r.pg.Rank() == 0 {
		r.pg.Log().Info("train: resumed from a checkpoint", "folder", r.Checkpoints, "steps", step, "of", r.stepsAt(step, r.position))
	}
	return r.moveTo(r.position)
}

// moveTo makes the run go on at a position. If the job can lose ranks, package elastic keeps the position in Data.
func (r *run) moveTo(p data.Position) error {
	r.position = p
	if r.pg.Survives() {
		return r.Data.Resume(p)
	}
	return nil
}

// checkPosition returns an error if the position is not one in Data. With AllowOtherData it changes the position.
func (r *run) checkPosition() error {
	err := r.Data.Sampler().CheckPosition(r.position)
	if err == nil {
		return nil
	}
	if !r.AllowOtherData {
		return fmt.Errorf("train: %s: %w, or AllowOtherData", r.Checkpoints, err)
	}
	if r.pg.Rank() == 0 {
		r.pg.Log().Info("train: the epoch starts again, with other data", "epoch", r.position.Epoch, "cause", err)
	}
	r.position = data.Position{Epoch: r.position.Epoch}
	return nil
}

// epoch trains on the rest of the epoch of the position, up to the last step of the run, and evaluates. It returns
// true if all ranks stop on request.
func (r *run) epoch(ctx context.Context) (isStopped bool, err error) {
	sampler, epoch := r.Data.Sampler(), r.position.Epoch
	end := sampler.Begin(epoch + 1)
	batches := 1 // the number of batches in the step, unless Data has a GlobalBatch
	for b, err := range r.Data.EpochFrom(ctx, r.position) {
		if err != nil {
			return false, err
		}
		r.lap(telemetry.Data)
		if r.step >= r.total { // the run ends in the middle of the epoch
			end = r.position
			break
		}
		if r.gathered == 0 && r.Model.Ending(r.wantsEnd) {
			r.isEnded = true
			return false, r.save(ctx)
		}
		if err := r.trace(ctx); err != nil {
			return false, err
		}
		r.share = b.Share
		if r.gathered == 0 {
			batches = min(r.Accumulate, sampler.StepsFrom(r.position))
		}
		r.weight = b.Weight / float64(batches)
		in := b.Vars
		if r.SumLoss {
			in = append(in[:len(in):len(in)], autograd.FromSlice(r.pg.Device(), []float64{b.LabelWeight}))
		}
		if r.gathered++; r.gathered < batches || !b.EndsStep {
			err := r.Model.NoSync(func() error {
				_, err := r.backward(in...)
				return err
			})
			if err != nil {
				return false, err
			}
			r.lap(r.launched(telemetry.Backward))
			continue
		}
		if r.LR != nil {
			r.Optimizer.(optim.LRSetter).SetLR(r.LR(r.step))
		}
		loss, err := r.complete(in...)
		if err != nil {
			return false, err
		}
		r.lap(r.launched(telemetry.Optimizer))
		r.step++
		samples := b.After.Sample - r.position.Sample
		r.count(samples, b)
		logs := r.meter.Step(samples) || r.step == 1
		r.gathered, r.position = 0, b.After
		stops := r.Model.Stopping()
		var logged []progress.Value
		if logs || r.saver != nil && (stops || isDue(r.step, r.SaveEvery) || r.step >= r.total || sampler.StepsFrom(r.position) == 0) {
			if logged, err = r.readLoss(ctx, loss, b, logs); err != nil {
				return false, err
			}
			r.lap(telemetry.Log)
		}
		if r.OnStep != nil {
			r.call(ctx, r.OnStep, &Status{Loss: loss, Values: logged})
		}
		r.tellCheckpoint(ctx)
		if stops {
			return true, r.save(ctx)
		}
		if err := r.finishStep(ctx); err != nil {
			return false, err
		}
		if r.isPatienceOver() {
			return false, r.save(ctx)
		}
	}
	if r.Evaluate != nil && r.evaluated != r.step {
		var values []progress.Value
		if end.Epoch > epoch {
			values = append(values, progress.V("epoch", float64(end.Epoch)))
		}
		if err := r.evaluate(ctx, values...); err != nil {
			return false, err
		}
	}
	r.position = end
	return false, r.save(ctx)
}

// launched returns the part of the step that has ended with a call of backward or complete: `last`, the last part of the
// call, or Replay if the call may have launched a graph instead.
func (r *run) launched(last string) string {
	if r.Captured {
		return telemetry.Replay
	}
	return last
}

// isDue reports whether something that is done after each `every` steps is done after a step. 0 means that it is not done.
func isDue(step, every int) bool { return every > 0 && step%every == 0 }

// finishStep evaluates and saves, as EvaluateEvery and SaveEvery say, what was not evaluated or saved after this step. The
// checkpoint comes last, so a step with a checkpoint is finished.
func (r *run) finishStep(ctx context.Context) error {
	if r.saved != r.step && r.evaluated != r.step && r.Evaluate != nil && isDue(r.step, r.EvaluateEvery) && r.step < r.total {
		if err := r.evaluate(ctx); err != nil {
			return err
		}
	}
	if !isDue(r.step, r.SaveEvery) && !r.isBest() {
		return nil
	}
	return r.save(ctx)
}

// evaluate calls Config.Evaluate, and logs its values and the given values.
func (r *run) evaluate(ctx context.Context, values ...progress.Value) error {
	measured, err := r.Evaluate(ctx)
	if err != nil {
		return err
	}
	isBest, err := r.judge(ctx, measured)
	if err != nil {
		return err
	}
	r.evaluated = r.step
	r.work.skip(r.pg.Device())
	r.meter.Note(append(values, measured...)...)
	r.lap(telemetry.Evaluation)
	r.call(ctx, r.OnEvaluation, &Status{Values: measured, IsBest: isBest})
	return nil
}

// update updates the parameters.
func (r *run) update() error {
	if r.ClipNorm > 0 {
		norm, err := r.clip()
		if err != nil {
			return err
		}
		if r.norm = norm; r.Captured { // replays do not come here
			r.norm = nil
		}
	}
	if err := r.Optimizer.Step(); err != nil {
		return err
	}
	r.Optimizer.ZeroGrad()
	return nil
}

// clip clips the norm of the gradients. An optimizer that divides the gradients among ranks has its own method for
// that.
func (r *run) clip() (*autograd.Variable, error) {
	if o, ok := r.Optimizer.(interface {
		ClipGradNorm(max float64, opts *optim.ClipOptions) (*autograd.Variable, error)
	}); ok {
		return o.ClipGradNorm(r.ClipNorm, nil)
	}
	return optim.ClipGradNorm(r.Model.Parameters(), r.ClipNorm, nil)
}

// readLoss checks, and if logs is true logs, the mean of the loss over the last batches of all ranks. b is this rank's.
// If none of them has labels, there is no such mean. readLoss returns the values that it logged.
func (r *run) readLoss(ctx context.Context, loss *autograd.Variable, b *data.Batch, logs bool) (values []progress.Value, err error) {
	value, err := loss.TryItem(ctx)
	if err != nil {
		return nil, err
	}
	of := len(b.Indices) - b.Repeats
	if r.SumLoss {
		of = b.Labels
		value /= float64(of)
	}
	all, err := metrics.Reduce(ctx, r.pg, metrics.Mean(value, of))
	if err != nil {
		return nil, err
	}
	mean, hasMean := all[0].Value, all[0].Count > 0
	if logs {
		if hasMean {
			values = append(values, progress.V("loss", mean))
		}
		if r.LR != nil {
			values = append(values, progress.V("lr", r.LR(r.step-1)))
		}
		if r.norm != nil {
			norm, err := r.norm.TryItem(ctx)
			if err != nil {
				return nil, err
			}
			values = append(values, progress.V("grad_norm", norm))
		}
		r.meter.Log(values...)
	}
	if !hasMean || !math.IsNaN(mean) && !math.IsInf(mean, 0) || r.hasWarned {
		return values, nil
	}
	if r.RequireFinite {
		return nil, fmt.Errorf("train: the loss of step %d is %v, want a finite one (RequireFinite)", r.step, mean)
	}
	r.hasWarned = true
	if r.pg.Rank() == 0 {
		r.pg.Log().Warn("train: the loss is not finite", "step", r.step, "loss", mean)
	}
	return values, nil
}

// save saves a checkpoint, unless a checkpoint of this step was already saved.
func (r *run) save(ctx context.Context) error {
	if r.saver == nil || r.saved == r.step {
		return nil
	}
	defer r.lap(telemetry.Checkpoint)
	if err := r.saver.Wait(ctx); err != nil {
		return err
	}
	r.lap(telemetry.Checkpoint)
	r.tellCheckpoint(ctx)
	r.saved, r.state.Best = r.step, r.isBest()
	return r.saver.Save(ctx, r.step, r.state)
}
