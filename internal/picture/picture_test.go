package picture

import (
	"image/color"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
)

// A long text in a legend is shortened in the middle, so that it fits into the row.
func TestLegendOfLongText(t *testing.T) {
	style := TextStyle(New(), color.Black)
	legend := Legend{{Text: "run", Length: 10}, {Text: "begin" + strings.Repeat(" of a long name", 20) + " to its end", Length: 10}}
	var texts []string
	legend.layout(style, 300, func(e Entry, row int, x vg.Length) {
		texts = append(texts, e.Text)
		if right := x + e.Length + beforeIt + style.Width(e.Text); right > 300 {
			t.Errorf("%q ends at %v", e.Text, right)
		}
	})
	if got := texts[1]; texts[0] != "run" || !strings.HasPrefix(got, "begin of a ") || !strings.HasSuffix(got, " to its end") || !strings.Contains(got, "…") {
		t.Errorf("the texts are %q", texts)
	}
}

// Ticks stand at multiples of 1, 2 or 5, with labels that are short and tell them apart.
func TestTicks(t *testing.T) {
	for _, test := range []struct {
		least, most float64
		ticks       Ticks
		want        string
	}{
		{0, 10, Ticks{}, "0 2 4 6 8 10"},
		{3, 4700, Ticks{}, "1000 2000 3000 4000"},
		{1, 2, Ticks{Whole: true}, "1 2"},
		{0, 0.001, Ticks{}, "0 0.0002 0.0004 0.0006 0.0008 0.0010"},
		{0, 5e-5, Ticks{}, "0 1e-5 2e-5 3e-5 4e-5 5e-5"},
		{2e4, 5e4, Ticks{}, "20k 30k 40k 50k"},
		{50_908_000, 50_918_000, Ticks{}, "50.908M 50.910M 50.912M 50.914M 50.916M 50.918M"},
		{-1e18, 1e18, Ticks{}, "-1e18 -5e17 0 5e17 1e18"},
		{0.3, 6, Ticks{Log: true}, "0.5 1 2 5"},
		{3.2, 4.7, Ticks{Log: true}, "3.5 4.0 4.5"},
		{1e-20, 1e20, Ticks{Log: true}, "1e-20 1e-15 1e-10 1e-5 1 100000 1e10 1e15 1e20"},
	} {
		var labels []string
		for _, tick := range test.ticks.Ticks(test.least, test.most) {
			labels = append(labels, tick.Label)
		}
		if got := strings.Join(labels, " "); got != test.want {
			t.Errorf("from %g to %g: %s, want %s", test.least, test.most, got, test.want)
		}
	}
}
