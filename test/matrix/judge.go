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
	// What was measured, and the limits.
	losses, lossLimit          float64
	parameters, parameterLimit float64
	differ                     int // ranks whose final parameters are not, to the bit, rank 0's
	skips                      int // by how many the skipped steps of the ranks, and of a single process, differ
}

// exact is the limit in float64.
const exact = 1e-9

// judge compares what rank 0 got, and what it knows of all ranks, with what a single
// process got.
func (r *recipe) judge(w way, want *reference, got *outcome, ranks []shared) verdict {
	v := verdict{way: w.name, types: r.types(), lossLimit: exact, parameters: compare.Worst(want.final, got.final), parameterLimit: exact}
	var losses []map[int]float64
	var digests []string
	for _, rank := range ranks {
		losses, digests = append(losses, rank.Losses), append(digests, rank.Digest)
		v.skips = max(v.skips, rank.Committed-want.Committed, want.Committed-rank.Committed)
	}
	v.differ = compare.Differing(digests)
	v.losses = farthest(want.Losses, losses...)
	switch {
	case w.lossy > 0:
		v.losses, v.lossLimit = math.Abs(r.last(losses...)/r.last(want.Losses)-1), w.lossy
		v.parameterLimit = math.Inf(1)
	case !r.exact():
		v.lossLimit, v.parameterLimit = 3*want.lossGap, 3*want.parameterGap
	}
	return v
}

// mean is that of the losses of those ranks that have made a step.
func mean(step int, ranks []map[int]float64) float64 {
	sum, n := 0.0, 0.0
	for _, losses := range ranks {
		if l, ok := losses[step]; ok {
			sum += l
			n++
		}
	}
	return sum / n
}

// farthest is the greatest difference of a step's loss from the mean of the ranks'.
func farthest(want map[int]float64, ranks ...map[int]float64) float64 {
	greatest := 0.0
	for step, w := range want {
		greatest = max(greatest, math.Abs(mean(step, ranks)-w))
	}
	return greatest
}

// last is the mean loss of the last steps, through each batch once.
func (r *recipe) last(ranks ...map[int]float64) (last float64) {
	for i := range batches {
		last += mean(r.steps-1-i, ranks) / batches
	}
	return last
}

// ok is false for what is not a number.
func (v verdict) ok() bool {
	return v.losses <= v.lossLimit && v.parameters <= v.parameterLimit && v.differ == 0 && v.skips == 0
}

// row lays out a line.
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
	word := "ok"
	if !v.ok() {
		word = "MISSED"
	}
	return row(v.way, v.types, number(v.losses), number(v.lossLimit), number(v.parameters), number(v.parameterLimit), v.differ, v.skips, word)
}
