package train

import (
	"context"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/progress"
)

// Model is the interface that Run requires of a model. [*ddp.Model] and [*zero.Model] implement it.
type Model interface {
	nn.Model
	NoSync(f func() error) error
	Passes() int
	Stopping() bool
	Ending(want bool) bool
	Waited() time.Duration
	OnRank(rank int, f func() error) error
}

// Config describes a training run. It is the same on all ranks, also where rank 0 alone writes a file. Run returns an error on all ranks before the first step if one of these files cannot be made. A field
// that is nil, 0 or "" switches its feature off, unless its comment gives a default.
type Config struct {
	Model Model
	// Optimizer must be an [optim.LRSetter] if LR is set.
	Optimizer optim.Optimizer
	// The option LastBatch of Data must be Pad or Drop: with Uneven, ranks may have different numbers of steps. A run
	// starts with the first sample, or where its checkpoint was saved. It ignores a position passed to Data.Resume.
	Data *data.Loader
	// The run ends after Epochs epochs or MaxSteps steps, whichever comes first. At least one of them must not be 0.
	Epochs, MaxSteps int
	// Loss computes the loss of a batch, a scalar. If Data has a GlobalBatch, it must be a mean over the batch's samples.
	Loss func(b *data.Batch) *autograd.Variable
	// SumLoss declares that Loss returns the sum of the losses of the batch's labels. The gradients are then those of the
	// mean over all labels of the step, of all micro-batches and ranks; a batch without labels adds nothing. The data set
	// of Data must be [data.Labeled], and Accumulate 0 or 1: use a GlobalBatch instead. The loss of a line of the log is
	// the mean over the labels of the last batches of the ranks.
	SumLoss bool
	// Captured launches each step, from the loss to the update, as one CUDA graph. [autograd.Capture] says what Loss
	// may then do. In addition, Loss may use only the batch's Vars.
	Captured bool

	// LR returns the learning rate of each step. If it is nil, Run does not set the learning rate. If the optimizer is
	// an [optim.LRKeeper], Run restores the rates of its groups at the end. LR depends only on the step's number: if a
	// run goes on with a different number of ranks, its epochs have a different number of steps, unless Data has a
	// GlobalBatch, but LR does not change.
	LR schedule.Schedule
	// Accumulate is the number of batches in a step; 0 means 1. The gradients are those of the mean of the batches'
	// losses. If an epoch's batches do not fill its last step, that step averages over fewer batches. If Data has a
	// GlobalBatch, a step has that many samples, and Accumulate must be 0 or 1.
	Accumulate int
	// ClipNorm is the largest norm of all gradients together. Larger gradients are scaled down.
	ClipNorm float64
	// FLOPs is the number of floating-point operations of a sample, forward and backward; 0 means those that
	// [autograd.Operations] counts. PeakFLOPS is the number of operations that the device of a rank can make in a second. 0 means that of
	// NVIDIA's data sheet, if the device is a GPU that package device/cuda knows. With a peak, the lines of the log also have "mfu",
	// the part of it that is used.
	FLOPs, PeakFLOPS float64
	// RequireFinite makes Run fail on all ranks if the loss or the state to be saved is not finite, before a
	// checkpoint is saved: see [checkpoint.Options]. Otherwise the first such loss and the first such state are logged.
	// Run reads the mean of the loss over the ranks at each line of the log and at each checkpoint.
	RequireFinite bool

	// Evaluate is called on all ranks after each epoch and at the end of the run. If EvaluateEvery is not 0, it is
	// also called after each EvaluateEvery steps. It is called at most once after the same step. Rank 0 logs the
	// values that Evaluate returns. If the job goes on without a rank that it loses meanwhile, all ranks call it again.
	Evaluate      func(ctx context.Context) ([]progress.Value, error)
	EvaluateEvery int
	// Best is the name of the value of Evaluate that says how good the model is, such as "accuracy", and Mode says whether
	// lower values are better, the default, or higher ones. All ranks use rank 0's value. If it is better than all before, a
	// checkpoint is saved, which Keep does not delete until there is a better one: [checkpoint.Best] returns it.
	Best string
	Mode Mode
	// Patience ends the run after so many evaluations in a row of which none is better than the best one before them, by more
	// than MinDelta. The run then saves and writes what it does at its end. A run that resumes counts on.
	Patience int
	MinDelta float64

	// OnStep is called on all ranks after each step, before an evaluation and a checkpoint. OnEvaluation is called on all
	// ranks after each evaluation, before a checkpoint. Both may communicate if they do so on all ranks. OnCheckpoint is
	// called on each rank soon after the rank knows that a checkpoint is complete, between two steps, and must not
	// communicate.
	//
	// If a callback returns ErrStop on any rank, or another error, the run ends on all ranks after the next step
	// and saves a checkpoint. Run then returns the other errors, on all ranks, or nil. If the job loses ranks, a callback may be
	// missing for the step of the loss.
	OnStep, OnEvaluation, OnCheckpoint func(ctx context.Context, s *Status) error

	// Log is a file to which rank 0 appends JSON lines, or "tb:" and a folder for TensorBoard: see package progress.
	Log string
	// LogEvery is the number of steps between two lines; 0 means 100. The first and the last step of the run
	// have lines too. The loss of a line is the mean over the last batches of the ranks in the step.
	LogEvery int
	// Trace is a file for a trace of steps 11 to 15, counted from the start or the resumption. Rank 0 writes it, and
	// each other rank the file that [profile.RankPath] names; "goddp trace" reads them all. A trace has fewer steps
	// if the run ends or fails during these steps. If the run ends before them, rank 0 logs that there is no trace.
	Trace string
	// Weights is a file to which rank 0 writes the model's weights when all steps are made, or when Patience or a callback ends
	// the run, but not when the ranks stop on request: see [checkpoint.SaveWeights].
	Weights string

	// Checkpoints is a folder that all ranks see. Run resumes from the latest checkpoint in it, if
	// there is one, and saves checkpoints to it.
	Checkpoints string
	// SaveEvery is the number of steps between two checkpoints. Run also saves one after each
	// epoch, when it is asked to stop, and at its end. It writes them in the background. If the job goes on without a
	// rank that it loses meanwhile, the checkpoint of the last step is saved again, but one of an earlier step is lost.
	SaveEvery int
	// Keep is the number of checkpoints that are kept; 0 means 3. The last finite one is kept in addition: see
	// [checkpoint.Options].
	Keep int
	// AllowOtherData lets a run resume with Data that differs from the saved run's in length, Shuffle or Seed, which
	// is an error by default. The run then restarts the checkpoint's epoch in the new order.
	AllowOtherData bool
	// Values are values of the program that Run saves and loads too: see [checkpoint.State]. Run itself saves
	// the model, the optimizer, the position in the data ("position") and the device's random generator
	// ("generator").
	Values map[string]any
}

// Steps returns the number of steps of a run that starts at the beginning. Unless Data has a GlobalBatch, the number may
// differ for a run that goes on with another number of ranks, because its epochs have a different number of steps.
func (c *Config) Steps() int { return c.stepsAt(0, data.Position{}) }

// stepsAt returns the total number of steps of a run that has made some steps and is now at position p.
func (c *Config) stepsAt(steps int, p data.Position) int {
	if c.Epochs == 0 {
		return c.MaxSteps
	}
	if p.Epoch < c.Epochs {
		steps += c.fill(c.Data.Sampler().StepsFrom(p)) + (c.Epochs-p.Epoch-1)*c.fill(c.Data.Steps())
	}
	if c.MaxSteps > 0 {
		return min(c.MaxSteps, steps)
	}
	return steps
}

// fill returns the number of steps that the given number of batches of an epoch takes.
func (c *Config) fill(batches int) int {
	each := max(c.Accumulate, 1)
	return (batches + each - 1) / each
}
