package page

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/internal/telemetry"
)

// paceTime is the time over which the mean times of a rank's steps are taken, at least. Twice that is the most, unless
// steps take longer.
const paceTime = 2 * time.Second

// pace holds the times of a rank's steps of the last seconds.
type pace struct {
	begin     time.Time // of now
	now, last window
}

// window sums up the times of some steps.
type window struct {
	steps float64
	sums  map[string]float64
}

// add adds the times of some steps.
func (p *pace) add(at time.Time, steps float64, parts []telemetry.Value) {
	if p.now.sums == nil || at.Sub(p.begin) > paceTime {
		p.begin, p.last, p.now = at, p.now, window{sums: map[string]float64{}}
	}
	p.now.steps += steps
	for _, v := range parts {
		if _, isKnown := p.now.sums[v.Name]; v.Number >= 0 && (isKnown || len(p.now.sums) < maxParts) {
			p.now.sums[v.Name] += v.Number
		}
	}
}

// mean returns the mean seconds of each part in the last steps, or nil if there were none.
func (p *pace) mean() map[string]float64 {
	steps := p.now.steps + p.last.steps
	if steps == 0 {
		return nil
	}
	mean := map[string]float64{}
	for _, w := range []window{p.last, p.now} {
		for name, sum := range w.sums {
			mean[name] += sum / steps
		}
	}
	return mean
}

// Slow names the rank for which the others wait.
type Slow struct {
	Rank int    `json:"rank"`
	Part string `json:"part"` // the part of a step in which it is slow
	Text string `json:"text"` // by how much and, if the state of the rank or its GPU explains it, why
}

// What a rank must be slower than others to be named: part of a step's time, and seconds.
const (
	slowShare   = 0.1
	slowSeconds = 0.5e-3
)

// slowest compares the mean times of the ranks' steps. It returns the rank whose own work takes longest, if the others
// lose time by it, and the part of its work that exceeds the median of all ranks most. Otherwise it returns nil.
func slowest(ranks map[int]map[string]float64) *Slow {
	maps.DeleteFunc(ranks, func(_ int, parts map[string]float64) bool { return len(parts) == 0 })
	if len(ranks) < 2 {
		return nil
	}
	numbers := slices.Sorted(maps.Keys(ranks))
	work := map[int]float64{}
	step := 0.0
	for _, n := range numbers {
		whole := 0.0
		for part, t := range ranks[n] {
			if whole += t; !shared[part] {
				work[n] += t
			}
		}
		step = max(step, whole)
	}
	culprit := slices.MaxFunc(numbers, func(a, b int) int {
		switch {
		case work[a] < work[b]:
			return -1
		case work[a] > work[b]:
			return 1
		}
		return b - a // the lowest of equal ones
	})
	s := &Slow{Rank: culprit}
	excess, usual := 0.0, 0.0 // how much longer the part takes than on the other ranks, and their median
	for _, part := range slices.Sorted(maps.Keys(ranks[culprit])) {
		if shared[part] {
			continue
		}
		var others []float64
		for _, n := range numbers {
			if n != culprit {
				others = append(others, ranks[n][part])
			}
		}
		slices.Sort(others)
		m := others[(len(others)-1)/2]
		if ranks[culprit][part]-m > excess {
			s.Part, excess, usual = part, ranks[culprit][part]-m, m
		}
	}
	if excess < slowSeconds || excess < slowShare*step {
		return nil
	}
	s.Text = fmt.Sprintf("%s is the slowest: %s takes %s of a step, on the other ranks %s; that is %.0f%% of the step",
		rootcause.Ranks([]int{s.Rank}), s.Part, seconds(ranks[culprit][s.Part]), seconds(usual), 100*excess/step)
	return s
}

// seconds formats a time for people, with three digits.
func seconds(s float64) string {
	unit, name := 1.0, "s"
	switch {
	case s < 1e-3:
		unit, name = 1e6, "µs"
	case s < 1:
		unit, name = 1e3, "ms"
	}
	return fmt.Sprintf("%.3g %s", s*unit, name)
}
