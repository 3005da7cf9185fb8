package data_test

import (
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
)

var _ data.Group = (*comm.ProcessGroup)(nil)

// An epoch of ten samples on two ranks, with two samples each in a step.
func ExampleSampler() {
	for rank := range 2 {
		sampler := data.Sampler{Len: 10, Rank: rank, Size: 2, Batch: 2}
		for share := range sampler.Shares(data.Position{}) {
			fmt.Println("rank", rank, "takes", share.Indices, "and repeats", share.Repeats)
		}
	}
	// Output:
	// rank 0 takes [0 1] and repeats 0
	// rank 0 takes [4 5] and repeats 0
	// rank 0 takes [8] and repeats 0
	// rank 1 takes [2 3] and repeats 0
	// rank 1 takes [6 7] and repeats 0
	// rank 1 takes [9] and repeats 0
}
