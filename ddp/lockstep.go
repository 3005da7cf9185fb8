package ddp

import (
	"context"
	"fmt"
	"iter"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
)

// What a rank says before each input.
const (
	hasInput int64 = iota
	ranOut
	brokeOff // its loop ended before its inputs
)

// Lockstep yields a rank's inputs as long as all ranks have one, so that all make
// the same steps:
//
//	for x, err := range ddp.Lockstep(pg, batches) {
//		if err != nil {
//			return err
//		}
//		...
//	}
//
// Where some ranks have less, the others get a [*reducer.LeftError] that names them,
// as they do themselves, and what these had left is not used; so they do where a
// rank's loop ends early. It is for models that communicate in Forward, which
// [Model.Join] does not go with, and costs a collective before each step, which the
// host waits for. All ranks call it, on the same group.
func Lockstep[T any](pg *comm.ProcessGroup, inputs iter.Seq[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for x := range inputs {
			if err := tellInput(pg, hasInput); err != nil {
				yield(none, err)
				return
			}
			if !yield(x, nil) {
				tellInput(pg, brokeOff) // the others get the error; here nobody asks any more
				return
			}
		}
		if err := tellInput(pg, ranOut); err != nil {
			yield(none, err)
		}
	}
}

// tellInput tells the ranks how this one's inputs stand. The error is a LeftError
// unless all have one, or none has, or that of the collective.
func tellInput(pg *comm.ProcessGroup, mine int64) error {
	all, err := comm.AllGatherInts(context.Background(), pg, []int64{mine}) // bounded by the call's own timeout
	if err != nil {
		return fmt.Errorf("ddp: asking the ranks for inputs: %w", err)
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
