package picture

import (
	"strings"
	"testing"
)

// Ticks stand at multiples of 1, 2 or 5, with labels that are short and tell them apart.
func TestTicks(t *testing.T) {
	for _, test := range []struct {
		least, most float64
		isLog       bool
		want        string
	}{
		{0, 10, false, "0 2 4 6 8 10"},
		{3, 4700, false, "1000 2000 3000 4000"},
		{0, 0.001, false, "0 0.0002 0.0004 0.0006 0.0008 0.0010"},
		{0, 5e-5, false, "0 1e-5 2e-5 3e-5 4e-5 5e-5"},
		{2e4, 5e4, false, "20k 30k 40k 50k"},
		{50_908_000, 50_918_000, false, "50.908M 50.910M 50.912M 50.914M 50.916M 50.918M"},
		{-1e18, 1e18, false, "-1e18 -5e17 0 5e17 1e18"},
		{0.3, 6, true, "0.5 1 2 5"},
		{1e-20, 1e20, true, "1e-20 1e-15 1e-10 1e-5 1 100000 1e10 1e15 1e20"},
	} {
		var labels []string
		for _, tick := range (Ticks{test.isLog}).Ticks(test.least, test.most) {
			labels = append(labels, tick.Label)
		}
		if got := strings.Join(labels, " "); got != test.want {
			t.Errorf("from %g to %g: %s, want %s", test.least, test.most, got, test.want)
		}
	}
}
