package metrics

import (
	"context"
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
)

// A Confusion is a confusion matrix: Confusion[label][predicted] is the number of samples of class label
// for which the model predicted class predicted.
type Confusion [][]int

// NewConfusion returns a matrix of zeros for the given number of classes.
func NewConfusion(classes int) Confusion {
	c := make(Confusion, classes)
	for i := range c {
		c[i] = make([]int, classes)
	}
	return c
}

// Add counts a batch. For each row of logits, a Variable of shape [n, classes], the predicted class is the
// index of the largest value. labels, int64 of shape [n], contains the true classes. A NaN does not count as the
// largest value, except that a row that starts with NaN counts as class 0. Add waits for the device. For an
// invalid label it returns an error; the rows before it are counted.
func (c Confusion) Add(ctx context.Context, logits, labels *autograd.Variable) error {
	if shape := logits.Shape(); len(shape) != 2 || shape[1] != len(c) {
		return fmt.Errorf("metrics: logits have shape %v, but the confusion matrix has %d classes", shape, len(c))
	}
	return rows(ctx, logits, labels, func(row []float64, label int) {
		c[label][argmax(row)]++
	})
}

// Reduce replaces the matrix by its sum over the ranks. All ranks call it, as [Reduce].
func (c Confusion) Reduce(ctx context.Context, pg *comm.ProcessGroup) error {
	var counts []Metric
	for _, row := range c {
		for _, n := range row {
			counts = append(counts, Count(n))
		}
	}
	results, err := Reduce(ctx, pg, counts...)
	for i, r := range results {
		c[i/len(c)][i%len(c)] = r.Count
	}
	return err
}

// Accuracy returns the fraction of samples whose predicted class is the true one, NaN
// if there are no samples.
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

// Correct returns the top-k count: the number of rows of logits in which the value at the index of the row's
// label is among the k largest. logits has the shape [n, classes]; labels is int64 of shape [n]. Of equal values
// the one with the lower index counts as larger. A row with a NaN is not correct. Correct waits for the device.
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
		return fmt.Errorf("metrics: logits have shape %v and labels %v, want [n classes] and [n]", shape, labels.Shape())
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
		if label != math.Trunc(label) || label < 0 || label >= float64(shape[1]) {
			return fmt.Errorf("metrics: row %d has label %v, want 0 to %d", i, label, shape[1]-1)
		}
		f(values[i*shape[1]:(i+1)*shape[1]], int(label))
	}
	return nil
}

// argmax returns the index of the first largest value.
func argmax(row []float64) int {
	at := 0
	for i, v := range row {
		if v > row[at] {
			at = i
		}
	}
	return at
}
