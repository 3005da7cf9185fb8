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

// state is the part of a [Scaler] that changes from step to step. It is what MarshalJSON encodes.
type state struct {
	Scale         float64
	GrowthTracker int // consecutive Updates without overflow since the scale last changed
}

// next returns the state after an Update.
func (s state) next(overflow bool, o Options) state {
	to := state{Scale: s.Scale, GrowthTracker: s.GrowthTracker + 1}
	scale := s.Scale
	switch {
	case overflow:
		scale, to.GrowthTracker = scale*o.BackoffFactor, 0
	case to.GrowthTracker >= o.GrowthInterval:
		scale, to.GrowthTracker = scale*o.GrowthFactor, 0
	}
	if isScale(scale) {
		to.Scale = float64(float32(scale))
	}
	return to
}

const wantScale = "a normal positive float32"

// isScale reports whether float32 arithmetic can multiply by a scale and divide by it.
func isScale(scale float64) bool {
	const smallest = 0x1p-126 // smaller float32 numbers have fewer digits
	return float32(scale) >= smallest && scale <= math.MaxFloat32
}

// MarshalJSON encodes the state of the Scaler, which is two numbers.
func (s *Scaler) MarshalJSON() ([]byte, error) { return json.Marshal(s.state) }

// UnmarshalJSON sets the state to one that MarshalJSON encoded. It discards all Unscales and Steps since
// the last Update, because their gradients had another scale.
func (s *Scaler) UnmarshalJSON(data []byte) error {
	var to state
	if err := json.Unmarshal(data, &to); err != nil {
		return err
	}
	if !isScale(to.Scale) {
		return fmt.Errorf("amp: Scale is %v, want %s", to.Scale, wantScale)
	}
	if to.GrowthTracker < 0 {
		return fmt.Errorf("amp: GrowthTracker is %d, want 0 or more", to.GrowthTracker)
	}
	s.restore(to)
	return nil
}

func (s *Scaler) restore(to state) {
	s.state = to
	for opt := range s.checks {
		s.forget(opt)
	}
}

// Agree sets the scales of all ranks of a group to the smallest of them, which overflowed on no rank.
// The program calls it after a failure, when the ranks may have made different numbers of steps. Agree
// discards all Unscales and Steps since the last Update. All ranks call it, in the same order as
// their other collectives. The group's timeout applies.
func (s *Scaler) Agree(ctx context.Context, pg *comm.ProcessGroup) error {
	if pg == nil {
		return fmt.Errorf("amp: agreeing on the scale: %w", comm.ErrNoGroup)
	}
	states, err := comm.AllGatherObject(ctx, pg, s.state)
	if err != nil {
		return fmt.Errorf("amp: agreeing on the scale: %w", err)
	}
	s.restore(slices.MinFunc(states, func(a, b state) int {
		return cmp.Or(cmp.Compare(a.Scale, b.Scale), cmp.Compare(a.GrowthTracker, b.GrowthTracker))
	}))
	return nil
}
