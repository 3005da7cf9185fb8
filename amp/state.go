package amp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/comm"
)

// State is what a [Scaler] carries from step to step: a few numbers, for a
// program to save with its own.
type State struct {
	Scale         float64 // what the loss is multiplied by
	GrowthTracker int     // Updates without overflow since the scale last changed
}

// next is the state after an Update.
func (s State) next(overflow bool, o Options) State {
	to := State{Scale: s.Scale, GrowthTracker: s.GrowthTracker + 1}
	scale := s.Scale
	switch {
	case overflow:
		scale, to.GrowthTracker = scale*o.BackoffFactor, 0
	case to.GrowthTracker >= o.GrowthInterval:
		scale, to.GrowthTracker = scale*o.GrowthFactor, 0
	}
	if usable(scale) {
		to.Scale = float64(float32(scale))
	}
	return to
}

// usable tells whether a scale can be divided by in float32 arithmetic, and the
// loss be multiplied by it.
func usable(scale float64) bool {
	const least = 0x1p-126 // below it numbers have fewer digits
	return float32(scale) >= least && scale <= math.MaxFloat32
}

// State is the state, for saving it.
func (s *Scaler) State() State { return s.state }

// MarshalJSON encodes the state.
func (s *Scaler) MarshalJSON() ([]byte, error) { return json.Marshal(s.state) }

// UnmarshalJSON is [Scaler.Restore] of a state that MarshalJSON encoded. What Restore panics
// at is an error.
func (s *Scaler) UnmarshalJSON(data []byte) error {
	var state State
	if err := json.Unmarshal(data, &state); err != nil {
		return err
	}
	if err := state.check(); err != nil {
		return err
	}
	s.restore(state)
	return nil
}

// Restore makes the state one that was saved, and forgets the Unscales and Steps since
// the last Update: their gradients were scaled otherwise. It panics with an
// [*OptionError] when that is none.
func (s *Scaler) Restore(state State) {
	if err := state.check(); err != nil {
		panic(err)
	}
	s.restore(state)
}

// check returns an [*OptionError] for a state that no Scaler has.
func (s State) check() error {
	if !usable(s.Scale) {
		return &OptionError{"Scale", s.Scale, "a number of float32 above 0"}
	}
	if s.GrowthTracker < 0 {
		return &OptionError{"GrowthTracker", float64(s.GrowthTracker), "0 or more"}
	}
	return nil
}

func (s *Scaler) restore(state State) {
	s.state = state
	for opt := range s.checks {
		s.forget(opt)
	}
}

// Agree gives all ranks of a group the smallest of their scales, after a failure
// that may have left each at another step: the scale that has proved safe for
// every one. As [Scaler.Restore] it forgets the Unscales and Steps since the last
// Update. All ranks call it, in the same order as their other collectives;
// it is bounded by the group's timeout.
func (s *Scaler) Agree(ctx context.Context, pg *comm.ProcessGroup) error {
	states, err := comm.AllGatherObject(ctx, pg, s.state)
	if err != nil {
		return fmt.Errorf("amp: agreeing on the scale: %w", err)
	}
	s.restore(slices.MinFunc(states, func(a, b State) int {
		return cmp.Or(cmp.Compare(a.Scale, b.Scale), cmp.Compare(a.GrowthTracker, b.GrowthTracker))
	}))
	return nil
}
