package ddp

import (
	"fmt"
	"iter"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
)

// The states that a rank reports before each step.
const (
	hasInput int64 = iota
	ranOut
	brokeOff // the rank's loop ended although the rank had inputs left
)

// Lockstep yields the inputs of this rank while all ranks have inputs, so that all ranks make the
// same steps:
//
//	for x, err := range ddp.Lockstep(pg, batches) {
//		if err != nil {
//			return err
//		}
//		...
//	}
//
// If some ranks run out of inputs before others, the loops of all ranks end with a
// [*reducer.LeftError] that names the ranks without inputs. Inputs that the other ranks have left
// are not used. The same happens if the loop of one rank ends early. Lockstep is for models that
// communicate in Forward, which [Model.Join] does not support. It makes one collective before each
// step, for which the host waits. All ranks call it, on the same group.
func Lockstep[T any](pg *comm.ProcessGroup, inputs iter.Seq[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if pg == nil {
			yield(none, fmt.Errorf("ddp: Lockstep: %w", comm.ErrNoGroup))
			return
		}
		for x := range inputs {
			if err := tellInput(pg, hasInput); err != nil {
				yield(none, err)
				return
			}
			if !yield(x, nil) {
				tellInput(pg, brokeOff) // the other ranks get the error; this rank's loop is over
				return
			}
		}
		if err := tellInput(pg, ranOut); err != nil {
			yield(none, err)
		}
	}
}

// tellInput exchanges the states of all ranks. It returns nil if all ranks have an input, or if no rank
// has one. Otherwise it returns a LeftError, or the error of the collective.
func tellInput(pg *comm.ProcessGroup, mine int64) error {
	all, err := comm.AllGatherInts(pg.Context(), pg, []int64{mine})
	if err != nil {
		return fmt.Errorf("ddp: asking all ranks whether they have another input: %w", err)
	}
	var left reducer.LeftError
	outOfInputs := 0
	for rank, theirs := range all {
		switch theirs[0] {
		case ranOut:
			outOfInputs++
			left.Left = append(left.Left, reducer.Left{Rank: rank})
		case brokeOff:
			left.Left = append(left.Left, reducer.Left{Rank: rank, Cause: "its loop ended before its inputs"})
		}
	}
	if len(left.Left) == 0 || outOfInputs == len(all) {
		return nil
	}
	return fmt.Errorf("ddp: %w", &left)
}
