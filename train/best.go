package train

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/progress"
)

// Mode says which values are better.
type Mode int

const (
	Min Mode = iota // lower ones, as of a loss
	Max             // higher ones, as of an accuracy
)

// standing is what is known of the evaluations so far. It is equal on all ranks.
type standing struct {
	Value    string  `json:"value"` // Config.Best
	Mode     Mode    `json:"mode"`
	Step     int     `json:"step"`      // the step of the last evaluation; 0: there was none
	Best     float64 `json:"best"`      // the best value
	BestStep int     `json:"best_step"` // its step; 0: there is none
	// Reference is the value that a better one must differ from by more than MinDelta, and Waited the number of evaluations
	// since.
	Reference float64 `json:"reference"`
	Waited    int     `json:"waited"`
}

// add adds the value of an evaluation after a step. A value that is not finite is not better than any.
func (s *standing) add(step int, value, minDelta float64) {
	sign := 1.0
	if s.Mode == Max {
		sign = -1
	}
	isFirst, isFinite := s.BestStep == 0, !math.IsNaN(value) && !math.IsInf(value, 0)
	s.Step, s.Waited = step, s.Waited+1
	if isFinite && (isFirst || sign*value < sign*s.Reference-minDelta) {
		s.Reference, s.Waited = value, 0
	}
	if isFinite && (isFirst || sign*value < sign*s.Best) {
		s.Best, s.BestStep = value, step
	}
}

// place is what a checkpoint holds as the value "position".
type place struct {
	*data.Position
	Evaluations *standing `json:"evaluations,omitempty"` // checkpoints of earlier versions do not have it
}

// place returns the place of the run. Loading it changes the run.
func (r *run) place() *place {
	p := &place{Position: &r.position}
	if r.Best != "" {
		p.Evaluations = &r.standing
	}
	return p
}

// judge adds rank 0's values of an evaluation to the standing of all ranks, unless the evaluation after this step was
// added before. It reports whether the model is now better than after all evaluations before.
func (r *run) judge(ctx context.Context, values []progress.Value) (isBest bool, err error) {
	if r.Best == "" {
		return false, nil
	}
	isKnown, now := r.standing.Step == r.step, r.standing
	if r.pg.Rank() == 0 && !isKnown {
		i := slices.IndexFunc(values, func(v progress.Value) bool { return v.Name == r.Best })
		if i < 0 {
			err = fmt.Errorf("train: Best is %q, but Evaluate returned %v: want a value with this name", r.Best, values)
		} else {
			now.add(r.step, values[i].Number, r.MinDelta)
		}
	}
	if err := comm.Agree(ctx, r.pg, err); err != nil {
		return false, err
	}
	if err := comm.BroadcastObject(ctx, r.pg, &now, 0); err != nil {
		return false, err
	}
	r.standing = now
	if isBest = !isKnown && r.isBest(); isBest {
		r.saved = 0 // a checkpoint of this step that is there already is not marked as the best
	}
	return isBest, nil
}

// isBest reports whether the model after this step is the best so far.
func (r *run) isBest() bool { return r.step > 0 && r.standing.BestStep == r.step }

// isPatienceOver reports whether the run ends early, because the model gets no better.
func (r *run) isPatienceOver() bool { return r.Patience > 0 && r.standing.Waited >= r.Patience }
