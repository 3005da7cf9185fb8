package compare

import (
	"math"
	"testing"
)

func TestWorstIsLargestRelativeDifference(t *testing.T) {
	if x := Worst([][]float32{{3, 4}, {1}}, [][]float64{{3, 4}, {1.5}}); x != 0.5 {
		t.Errorf("got %v, want 0.5", x)
	}
	if x := Worst([][]float32{{1}, {2}}, [][]float64{{math.NaN()}, {2}}); !math.IsNaN(x) {
		t.Errorf("the difference from a NaN is %v", x)
	}
}

func TestDifferingCountsRanks(t *testing.T) {
	if n := Differing([]string{"a", "b", "a", "c"}); n != 2 {
		t.Errorf("%v ranks differ, want 2", n)
	}
	if Digest([][]float64{{1, 2}}) == Digest([][]float64{{1, math.Nextafter(2, 3)}}) {
		t.Error("values that differ in one bit have the same digest")
	}
}
