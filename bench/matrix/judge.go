package main

import (
	"fmt"
	"math"
	"strings"
)

// verdict is a line of the table.
type verdict struct {
	way, types string
	// What was measured, and the limits; a limit of NaN is none.
	losses, lossLimit           float64
	parameters, parametersLimit float64
	differ                      int // ranks whose final parameters are not, to the bit, rank 0's
	skips                       int // by how many the skipped steps of the ranks, and of a single process, differ
}

// limits of what float64 semantics are compared to.
const exact = 1e-9

// judge compares what rank 0 got, and what it knows of all ranks, with what a single
// process got.
func (r *recipe) judge(w way, want *reference, got *outcome, ranks []shared) verdict {
	v := verdict{way: w.name, types: r.types(), lossLimit: exact, parameters: worst(want.final, got.final), parametersLimit: exact}
	var losses [][]float64
	for _, rank := range ranks {
		losses = append(losses, rank.Losses)
		if rank.Digest != ranks[0].Digest {
			v.differ++
		}
		v.skips = max(v.skips, rank.Committed-want.Committed, want.Committed-rank.Committed)
	}
	v.losses = farthest(want.Losses, losses)
	switch {
	case w.lossy > 0:
		v.losses, v.lossLimit = math.Abs(last(losses...)/last(want.Losses)-1), w.lossy
		v.parametersLimit = math.NaN()
	case r.inputType().Size() < 8:
		v.lossLimit, v.parametersLimit = 3*want.losses, 3*want.parameters
	}
	return v
}

// last is the mean loss of the last steps, through each batch once.
func last(ranks ...[]float64) (mean float64) {
	for _, losses := range ranks {
		for _, l := range losses[len(losses)-batches:] {
			mean += l / batches / float64(len(ranks))
		}
	}
	return mean
}

// within is false for what is not a number.
func within(measured, limit float64) bool { return measured <= limit || math.IsNaN(limit) }

func (v verdict) ok() bool {
	return within(v.losses, v.lossLimit) && within(v.parameters, v.parametersLimit) && v.differ == 0 && v.skips == 0
}

// row lays out a line.
func row(columns ...any) string {
	return strings.TrimRight(fmt.Sprintf("%-42s %-17s %8v %8v %10v %8v %6v %5v  %s", columns...), " ")
}

var header = row("", "", "losses", "limit", "parameters", "limit", "differ", "skips", "")

func (v verdict) String() string {
	number := func(x float64) string {
		if math.IsNaN(x) {
			return "-"
		}
		return fmt.Sprintf("%.2g", x)
	}
	word := "ok"
	if !v.ok() {
		word = "MISSED"
	}
	return row(v.way, v.types, number(v.losses), number(v.lossLimit), number(v.parameters), number(v.parametersLimit), v.differ, v.skips, word)
}
