package train

import (
	"context"
	"errors"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/progress"
)

// ErrStop is what a callback returns to end the run: see [Config.OnStep].
var ErrStop = errors.New("train: a callback ends the run")

// Status is the state of the run, for callbacks.
type Status struct {
	Step, Steps int // the number of steps made, and of the run, unless it ends early
	Epoch       int // the epoch of the last step, counted from 0

	// Loss is this rank's loss of the last batch, for OnStep. To read it, the host waits for the device. The next step may
	// overwrite it.
	Loss *autograd.Variable
	// Values are, for OnStep, those of the line of the log after this step, if there is one, and for OnEvaluation
	// those of Evaluate.
	Values []progress.Value
	// IsBest says, for OnEvaluation, that the value of Config.Best is better than all before.
	IsBest bool
	// Checkpoint describes, for OnCheckpoint, the checkpoint.
	Checkpoint checkpoint.Stats
}

// call calls a callback, which may be nil.
func (r *run) call(ctx context.Context, f func(context.Context, *Status) error, s *Status) {
	if f == nil {
		return
	}
	s.Step, s.Steps, s.Epoch = r.step, r.total, r.position.Epoch
	err := f(ctx, s)
	r.lap(telemetry.Callback)
	if err != nil {
		r.wantsEnd = true
		if !errors.Is(err, ErrStop) {
			r.failed = errors.Join(r.failed, err)
		}
	}
}

// tellCheckpoint calls OnCheckpoint if a checkpoint has become complete since the last call.
func (r *run) tellCheckpoint(ctx context.Context) {
	if r.saver == nil || r.OnCheckpoint == nil {
		return
	}
	if s := r.saver.Stats(); s.Path != "" && s.Path != r.told {
		r.told = s.Path
		r.call(ctx, r.OnCheckpoint, &Status{Checkpoint: s})
	}
}

// finish waits for the last checkpoint, and returns the errors of the callbacks of all ranks on all ranks.
func (r *run) finish(ctx context.Context) error {
	var err error
	if r.saver != nil {
		err = r.saver.Wait(ctx)
		r.tellCheckpoint(ctx)
	}
	return comm.Agree(ctx, r.pg, errors.Join(err, r.failed))
}
