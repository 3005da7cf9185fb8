package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/goddp/goddp/test/internal/compare"
)

// verdict is a line of the table.
type verdict struct {
	way, types string
	// The measured differences and their limits.
	losses, lossLimit          float64
	parameters, parameterLimit float64
	differ                     int // number of ranks whose final parameters differ from rank 0's in any bit
	skips                      int // difference in the number of skipped steps, of a rank from the single process
}

// exactLimit is the limit in float64.
const exactLimit = 1e-9

// judge compares the outcome got of rank 0, and the shared part of all ranks' outcomes, with the single
// process.
func (r *recipe) judge(w way, want *reference, got *outcome, ranks []shared) verdict {
	v := verdict{way: w.name, types: r.types(), lossLimit: exactLimit, parameters: compare.Worst(want.final, got.final), parameterLimit: exactLimit}
	var losses []map[int]float64
	var digests []string
	for _, rank := range ranks {
		losses, digests = append(losses, rank.Losses), append(digests, rank.Digest)
		v.skips = max(v.skips, rank.Committed-want.Committed, want.Committed-rank.Committed)
	}
	v.differ = compare.Differing(digests)
	v.losses = maxLossDifference(want.Losses, losses...)
	switch {
	case w.tolerance > 0:
		v.losses, v.lossLimit = math.Abs(r.lastLoss(losses...)/r.lastLoss(want.Losses)-1), w.tolerance
		v.parameterLimit = math.Inf(1)
	case !r.isExact():
		v.lossLimit, v.parameterLimit = 3*want.lossGap, 3*want.parameterGap
	}
	return v
}

// meanLoss returns the mean loss of a step over the ranks that made the step.
func meanLoss(step int, ranks []map[int]float64) float64 {
	sum, n := 0.0, 0.0
	for _, losses := range ranks {
		if l, ok := losses[step]; ok {
			sum += l
			n++
		}
	}
	return sum / n
}

// maxLossDifference returns the largest difference of any step between the loss of want and the mean
// loss of the ranks.
func maxLossDifference(want map[int]float64, ranks ...map[int]float64) float64 {
	greatest := 0.0
	for step, w := range want {
		greatest = max(greatest, math.Abs(meanLoss(step, ranks)-w))
	}
	return greatest
}

// lastLoss returns the mean loss of the last steps, one step for each batch.
func (r *recipe) lastLoss(ranks ...map[int]float64) (last float64) {
	for i := range batches {
		last += meanLoss(r.steps-1-i, ranks) / batches
	}
	return last
}

// ok reports whether all limits are met. It returns false if a difference or a limit is NaN.
func (v verdict) ok() bool {
	return v.losses <= v.lossLimit && v.parameters <= v.parameterLimit && v.differ == 0 && v.skips == 0
}

// row formats a line of the table.
func row(columns ...any) string {
	return strings.TrimRight(fmt.Sprintf("%-42s %-17s %8v %8v %10v %8v %6v %5v  %s", columns...), " ")
}

var header = row("way", "type", "losses", "limit", "parameters", "limit", "differ", "skips", "")

func (v verdict) String() string {
	number := func(x float64) string {
		if math.IsInf(x, 1) {
			return "-"
		}
		return fmt.Sprintf("%.2g", x)
	}
	result := "ok"
	if !v.ok() {
		result = "MISSED"
	}
	return row(v.way, v.types, number(v.losses), number(v.lossLimit), number(v.parameters), number(v.parameterLimit), v.differ, v.skips, result)
}
