package metrics

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
)

// A Confusion counts what a classifier said: Confusion[label][said] samples of
// a class were said to be of another, or the same, class.
type Confusion [][]int

// NewConfusion is an empty count for so many classes.
func NewConfusion(classes int) Confusion {
	c := make(Confusion, classes)
	for i := range c {
		c[i] = make([]int, classes)
	}
	return c
}

// Add counts the rows of logits, [n, classes], against labels, int64 [n]. It
// waits for the device. The error names a label that is no class.
func (c Confusion) Add(ctx context.Context, logits, labels *autograd.Variable) error {
	return rows(ctx, logits, labels, func(row []float64, label int) {
		c[label][argmax(row)]++
	})
}

// Metrics are the counts, row by row, for [Reduce], and SetResults takes them
// back, summed over the ranks.
func (c Confusion) Metrics() []Metric {
	var out []Metric
	for _, row := range c {
		for _, n := range row {
			out = append(out, Count(n))
		}
	}
	return out
}

// SetResults sets the counts to what [Reduce] made of Metrics.
func (c Confusion) SetResults(results []Result) {
	for label, row := range c {
		for said := range row {
			row[said] = results[label*len(row)+said].Count
		}
	}
}

// Accuracy is the part of all samples that were said to be of their class, NaN
// without any.
func (c Confusion) Accuracy() float64 {
	right, all := 0, 0
	for label, row := range c {
		right += row[label]
		for _, n := range row {
			all += n
		}
	}
	return float64(right) / float64(all)
}

// Correct counts the rows of logits, [n, classes], whose label, of int64 [n], is
// among the k greatest. Of equal logits the first ones are the greater. A row
// with a NaN is not correct. It waits for the device.
func Correct(ctx context.Context, logits, labels *autograd.Variable, k int) (correct int, err error) {
	err = rows(ctx, logits, labels, func(row []float64, label int) {
		above := 0
		for i, v := range row {
			if v != v {
				return
			}
			if v > row[label] || v == row[label] && i < label {
				above++
			}
		}
		if above < k {
			correct++
		}
	})
	return correct, err
}

// rows calls f with each row of logits and its label.
func rows(ctx context.Context, logits, labels *autograd.Variable, f func(row []float64, label int)) error {
	shape := logits.Shape()
	if len(shape) != 2 || labels.Shape().Len() != shape[0] {
		return fmt.Errorf("metrics: logits %v and labels %v, want [n classes] and [n]", shape, labels.Shape())
	}
	values, err := logits.Read(ctx)
	if err != nil {
		return err
	}
	want, err := labels.Read(ctx)
	if err != nil {
		return err
	}
	for i, label := range want {
		if label < 0 || int(label) >= shape[1] {
			return fmt.Errorf("metrics: row %d has label %v, want one of 0 to %d", i, label, shape[1]-1)
		}
		f(values[i*shape[1]:(i+1)*shape[1]], int(label))
	}
	return nil
}

// argmax is the index of the first greatest value.
func argmax(row []float64) int {
	at := 0
	for i, v := range row {
		if v > row[at] {
			at = i
		}
	}
	return at
}
