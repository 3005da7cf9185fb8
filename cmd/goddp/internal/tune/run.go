package tune

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// Measure runs a setting in new processes, and returns the time of a call at each size, in
// microseconds. The sizes are the same in each run.
type Measure func(ctx context.Context, s Setting) (times []float64, err error)

// Comparison compares a setting with the default.
type Comparison struct {
	Setting
	// Ratios are the setting's times divided by the default's, by size. They are nil if a run failed.
	Ratios []Ratio
	// Error says why a run of the setting failed.
	Error string
}

// Ratio is the ratio of two times in several pairs of runs.
type Ratio struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	// Verdict compares the setting with the default.
	Verdict Verdict `json:"verdict"`
}

// Verdict says what a ratio means.
type Verdict string

// The verdicts.
const (
	Faster Verdict = "faster"
	Slower Verdict = "slower"
	Same   Verdict = "same" // or different by less than the noise
)

// Result is a comparison of settings.
type Result struct {
	// Default is the median time of all runs of the default, by size, in microseconds.
	Default []float64
	// Comparisons starts with the default compared with itself.
	Comparisons []Comparison
}

// Run compares settings with the default in pairs of runs. The order within the pairs alternates. A setting
// whose run fails is not run again. Run fails if a run of the default fails.
func Run(ctx context.Context, settings []Setting, pairs int, measure Measure) (*Result, error) {
	settings = append([]Setting{{}}, settings...)
	r := &Result{}
	for _, s := range settings {
		r.Comparisons = append(r.Comparisons, Comparison{Setting: s})
	}
	ratios := make([][][]float64, len(settings)) // by setting and size
	var defaults [][]float64                     // by size
	for pair := range pairs {
		for i := range r.Comparisons {
			c := &r.Comparisons[i]
			if c.Error != "" {
				continue
			}
			var base, times []float64
			var failed error // the error of the setting's run
			for n := range 2 {
				if (n+pair)%2 == 0 {
					var err error
					if base, err = measure(ctx, Setting{}); err != nil {
						return nil, fmt.Errorf("the benchmark with NCCL's default settings failed: %w", err)
					}
					defaults = appendEach(defaults, base)
				} else if times, failed = measure(ctx, c.Setting); failed != nil {
					break
				}
			}
			switch {
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case failed != nil && i == 0:
				return nil, fmt.Errorf("the benchmark with NCCL's default settings failed: %w", failed)
			case failed != nil:
				c.Error = failed.Error()
				continue
			case len(base) != len(times):
				return nil, fmt.Errorf("the run of %v measured %d sizes, but the run of the default settings measured %d", c.Setting, len(times), len(base))
			}
			for size := range times {
				times[size] /= base[size]
			}
			ratios[i] = appendEach(ratios[i], times)
		}
	}
	for _, times := range defaults {
		r.Default = append(r.Default, median(times))
	}
	for i := range r.Comparisons {
		if r.Comparisons[i].Error != "" {
			continue
		}
		for size, all := range ratios[i] {
			q := Ratio{Median: round(median(all)), Least: round(slices.Min(all)), Most: round(slices.Max(all)), Verdict: Same}
			if i > 0 {
				q.Verdict = judge(q, noise(r.Comparisons[0].Ratios[size]))
			}
			r.Comparisons[i].Ratios = append(r.Comparisons[i].Ratios, q)
		}
	}
	return r, nil
}

// least is the minimum gain that justifies a setting.
const least = 0.05

// noise returns the largest factor, 1 or more, between two runs of the default. The parameter itself is the
// ratio of the default to itself.
func noise(itself Ratio) float64 { return max(1, itself.Most, 1/itself.Least) }

// judge compares a ratio with the noise.
func judge(q Ratio, noise float64) Verdict {
	switch {
	case q.Median < 1-least && q.Most < 1/noise:
		return Faster
	case q.Median > 1+least && q.Least > noise:
		return Slower
	}
	return Same
}

// appendEach appends each element of values to the slice at its index.
func appendEach(to [][]float64, values []float64) [][]float64 {
	if to == nil {
		to = make([][]float64, len(values))
	}
	for i, v := range values {
		to[i] = append(to[i], v)
	}
	return to
}

// median returns the middle value, or the mean of the two middle ones.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// round keeps three digits after the point, which is more than the noise leaves.
func round(ratio float64) float64 { return math.Round(1000*ratio) / 1000 }
