package train

import (
	"math"
	"testing"
)

func TestStanding(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	for _, c := range []struct {
		mode         Mode
		delta        float64
		values       []float64
		best         float64
		step, waited int
	}{
		{Min, 0, []float64{3, 2, 2, 4}, 2, 2, 2},
		{Max, 0, []float64{3, 2, 4, 4}, 4, 3, 1},
		{Min, 0.5, []float64{3, 2.75, 2.5, 2.25}, 2.25, 4, 0}, // the best three differ from 3 by 0.25, 0.5 and 0.75
		{Max, 0.5, []float64{3, 3.25, 3.5}, 3.5, 3, 2},
		{Min, 0, []float64{nan, inf, 3, nan}, 3, 3, 1},
		{Max, 0, []float64{nan}, 0, 0, 1},
	} {
		s := standing{Mode: c.mode}
		for i, v := range c.values {
			s.add(i+1, v, c.delta)
		}
		if s.Best != c.best || s.BestStep != c.step || s.Waited != c.waited || s.Step != len(c.values) {
			t.Errorf("%+v: %+v", c, s)
		}
	}
}
