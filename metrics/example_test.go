package metrics_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/metrics"
)

// A mean loss over 32 samples and a count, over all ranks, in one collective.
func ExampleReduce() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer groups[0].Close()
	results, err := metrics.Reduce(context.Background(), groups[0], metrics.Mean(0.25, 32), metrics.Count(30))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("loss", results[0].Value, "of", results[0].Count, "samples,", results[1].Value, "correct")
	// Output: loss 0.25 of 32 samples, 30 correct
}
