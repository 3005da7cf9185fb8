package metrics

import (
	"context"
	"fmt"
	"math"

	"github.com/goddp/goddp/comm"
)

// Metric is one rank's contribution to a number that is reduced over the ranks.
type Metric struct {
	kind  kind
	value float64
	count int64
}

type kind int64

const (
	mean kind = iota
	sum
	lowest
	highest
	counted
)

func (k kind) String() string {
	if k < 0 || k > counted {
		return fmt.Sprintf("kind %d", int64(k))
	}
	return [...]string{"Mean", "Sum", "Min", "Max", "Count"}[k]
}

// Mean is a mean over count samples of this rank. Reduce returns the mean over the samples of all ranks,
// NaN if there are none. It ignores the value of a mean over no samples. Mean panics if count is negative.
func Mean(x float64, count int) Metric { return Metric{mean, x, validCount(count)} }

// Sum is a number that Reduce sums over the ranks.
func Sum(x float64) Metric { return Metric{sum, x, 1} }

// Min is a number of which Reduce returns the minimum over the ranks.
func Min(x float64) Metric { return Metric{lowest, x, 1} }

// Max is a number of which Reduce returns the maximum over the ranks.
func Max(x float64) Metric { return Metric{highest, x, 1} }

// Count is an integer that Reduce sums over the ranks, exactly. Count panics if n is negative.
func Count(n int) Metric { return Metric{counted, 0, validCount(n)} }

func validCount(count int) int64 {
	if count < 0 {
		panic(fmt.Errorf("metrics: count %d, want 0 or more", count))
	}
	return int64(count)
}

// Result is a reduced Metric.
type Result struct {
	// Value is the reduced number; for a Count, the count.
	Value float64
	// Count is the number of samples for a Mean, the sum for a Count, and otherwise the number of
	// ranks.
	Count int
}

// MismatchError reports that a rank passed a different kind of metric to Reduce than rank 0. All ranks get
// it, and the group stays usable.
type MismatchError struct {
	Index         int // the metric's index
	Rank          int
	Theirs, Rank0 string // "Mean", "Sum", ...
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("metrics: metric %d is a %s on rank %d, a %s on rank 0", e.Index, e.Theirs, e.Rank, e.Rank0)
}

// words is the number of integers that encode a Metric.
const words = 3

// Reduce reduces ms over the ranks. All ranks must call it with the same number and kinds of metrics, in
// the same order relative to their other collectives. Results are in the order of ms and equal on all
// ranks. The error is a [*MismatchError] or the error of the collective.
func Reduce(ctx context.Context, pg *comm.ProcessGroup, ms ...Metric) ([]Result, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	mine := make([]int64, 0, words*len(ms))
	for _, m := range ms {
		mine = append(mine, int64(m.kind), int64(math.Float64bits(m.value)), m.count)
	}
	all, err := comm.AllGatherInts(ctx, pg, mine)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	out := make([]Result, len(ms))
	ranks := make([]Metric, len(all))
	for i := range out {
		for r, theirs := range all {
			m := theirs[words*i:]
			ranks[r] = Metric{kind(m[0]), math.Float64frombits(uint64(m[1])), m[2]}
			if k := ranks[r].kind; k != ranks[0].kind {
				return nil, &MismatchError{Index: i, Rank: r, Theirs: k.String(), Rank0: ranks[0].kind.String()}
			}
		}
		out[i] = reduce(ranks)
	}
	return out, nil
}

// reduce combines one metric of all ranks, in the order of ranks.
func reduce(ranks []Metric) Result {
	var count int64
	for _, m := range ranks {
		count += m.count
	}
	x := ranks[0].value
	switch ranks[0].kind {
	case mean:
		x = average(ranks, count)
	case counted:
		x = float64(count)
	default:
		for _, m := range ranks[1:] {
			switch m.kind {
			case sum:
				x += m.value
			case lowest:
				x = min(x, m.value)
			case highest:
				x = max(x, m.value)
			}
		}
	}
	return Result{x, int(count)}
}

// average weights each mean by its share of all samples. If one rank has all samples, the result is its
// mean bit for bit.
func average(ranks []Metric, count int64) float64 {
	if count == 0 {
		return math.NaN()
	}
	x := 0.0
	for _, m := range ranks {
		if m.count > 0 {
			x += m.value * (float64(m.count) / float64(count))
		}
	}
	return x
}
