package metrics

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

func TestClassification(t *testing.T) {
	dev := cpu.New(&cpu.Options{Threads: 1})
	defer dev.Close()
	logits := autograd.FromSlice(dev, []float32{
		3, 1, 2,
		1, 5, 4,
		2, 2, 2,
		0, 9, float32(math.NaN()),
	}, 4, 3)
	labels := autograd.FromSlice(dev, []int64{0, 2, 1, 1})
	for k, want := range map[int]int{1: 1, 2: 3, 3: 3} {
		if got, err := Correct(t.Context(), logits, labels, k); err != nil || got != want {
			t.Errorf("%d rows have their label among the first %d, want %d: %v", got, k, want, err)
		}
	}
	c := NewConfusion(3)
	if err := c.Add(t.Context(), logits, labels); err != nil {
		t.Fatal(err)
	}
	if want := (Confusion{{1, 0, 0}, {1, 1, 0}, {0, 1, 0}}); !slices.EqualFunc(c, want, slices.Equal) {
		t.Errorf("confusion %v, want %v", c, want)
	}
	if got := c.Accuracy(); got != 0.5 {
		t.Errorf("accuracy %v, want 0.5", got)
	}
	if got := NewConfusion(2).Accuracy(); !math.IsNaN(got) {
		t.Errorf("accuracy %v of no samples, want NaN", got)
	}
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		mine := Confusion{{1, 2}, {3, pg.Rank()}}
		if err := mine.Reduce(t.Context(), pg); err != nil || !slices.EqualFunc(mine, Confusion{{2, 4}, {6, 1}}, slices.Equal) {
			return fmt.Errorf("the sum is %v, %v", mine, err)
		}
		return nil
	})
	if err := NewConfusion(2).Add(t.Context(), logits, labels); err == nil || !strings.Contains(err.Error(), "[4 3], but the confusion matrix has 2 classes") {
		t.Errorf("%v, want an error with the shape and the number of classes", err)
	}
	for want, labels := range map[string]*autograd.Variable{
		"row 1 has label 3, want 0 to 2": autograd.FromSlice(dev, []int64{0, 3, 0, 0}),
		"row 2 has label NaN":            autograd.FromSlice(dev, []float32{0, 1, float32(math.NaN()), 0}),
		"row 3 has label 0.5":            autograd.FromSlice(dev, []float32{0, 1, 1, 0.5}),
		"want [n classes] and [n]":       autograd.FromSlice(dev, []int64{0, 1}),
	} {
		if err := c.Add(t.Context(), logits, labels); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}
