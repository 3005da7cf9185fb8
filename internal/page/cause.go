package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/internal/telemetry"
)

// condition is how a rank and its GPU were a moment ago.
type condition struct {
	at      time.Time
	numbers map[string]float64
}

// freshTime is the age after which a condition explains nothing.
const freshTime = 5 * time.Second

// sampleEvery is the least time between two points of a condition's curves. Ranks report more rarely.
const sampleEvery = 500 * time.Millisecond

// isConstant are numbers of a condition that need no curve.
var isConstant = map[string]bool{telemetry.GPUMaxClock: true, telemetry.GPUPowerLimit: true, telemetry.GPUNVLinks: true, telemetry.NetworkSpeed: true}

// What a condition must be to explain why a rank is slow, compared with the median of the other ranks.
const (
	lowClock    = 0.9  // part of their clock
	manyWaiting = 0.25 // threads that wait for a CPU core, on average
	manyResent  = 0.01 // part of the TCP segments
	muchMore    = 2    // times as many of both as the others
)

// conditions are those of all ranks.
type conditions map[int]map[string]float64

// others returns the median of a number of the ranks other than `rank`, or `otherwise` if none of them has it.
func (c conditions) others(rank int, name string, otherwise float64) float64 {
	var all []float64
	for n, numbers := range c {
		if v, has := numbers[name]; has && n != rank {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return otherwise
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// causes lists what is worse on a rank than on the others, and may make it slow.
func (c conditions) causes(rank int) (texts []string) {
	own := c[rank]
	if text := c.clock(rank); text != "" {
		texts = append(texts, text)
	}
	if n := own[telemetry.GPUECCErrors]; n > c.others(rank, telemetry.GPUECCErrors, 0) {
		texts = append(texts, fmt.Sprintf("its GPU has had %.0f uncorrected memory errors", n))
	}
	if n, usual := own[telemetry.GPUNVLinks], c.others(rank, telemetry.GPUNVLinks, 0); own[telemetry.GPUClock] > 0 && n < usual {
		texts = append(texts, fmt.Sprintf("its GPU has %.0f NVLinks, those of the other ranks %.0f", n, usual))
	}
	if n, usual := own[telemetry.CPUWaitingThreads], c.others(rank, telemetry.CPUWaitingThreads, 0); n >= manyWaiting && n >= muchMore*usual {
		texts = append(texts, fmt.Sprintf("%.2g of its threads wait for a CPU core, on the other ranks %.2g", n, usual))
	}
	if n, usual := own[telemetry.TCPResent], c.others(rank, telemetry.TCPResent, 0); n >= manyResent && n >= muchMore*usual {
		texts = append(texts, fmt.Sprintf("its host sends %.2g%% of its TCP segments again", 100*n))
	}
	if n, usual := own[telemetry.NetworkSpeed], c.others(rank, telemetry.NetworkSpeed, 0); n > 0 && n < usual {
		texts = append(texts, fmt.Sprintf("its host's network links have %.3g Gbit/s, those of the other hosts %.3g", n, usual))
	}
	return texts
}

// clock says why the clock of a rank's GPU is lower than that of the others, or returns "". An idle GPU also has a low clock, but
// no reason. A GPU at its power limit is slow only if the others are faster.
func (c conditions) clock(rank int) string {
	own := c[rank]
	clock, highest := own[telemetry.GPUClock], own[telemetry.GPUMaxClock]
	if clock == 0 || clock >= lowClock*c.others(rank, telemetry.GPUClock, highest) {
		return ""
	}
	reason := ""
	switch {
	case own[telemetry.GPUSlowedByTemperature] > 0:
		reason = fmt.Sprintf("a temperature of %.0f °C", own[telemetry.GPUTemperature])
	case own[telemetry.GPUSlowedByPowerBrake] > 0:
		reason = "its power supply"
	case own[telemetry.GPUSlowedByHardware] > 0:
		reason = "a hardware slowdown"
	case own[telemetry.GPUSlowedByPowerLimit] > 0 && c.others(rank, telemetry.GPUClock, 0) > 0:
		reason = fmt.Sprintf("its power limit of %.0f W", own[telemetry.GPUPowerLimit])
	default:
		return ""
	}
	return fmt.Sprintf("its GPU runs at %.0f of %.0f MHz because of %s", clock, highest, reason)
}

// explain adds to s why the rank is slow. If s is nil, because a host only enqueues kernels and does not see that its GPU is
// slow, explain names the rank whose GPU has the lowest clock for a reason.
func (s *Slow) explain(c conditions) *Slow {
	if s != nil {
		if causes := c.causes(s.Rank); len(causes) > 0 {
			s.Text += "; " + strings.Join(causes, ", ")
		}
		return s
	}
	for _, n := range slices.Sorted(maps.Keys(c)) {
		if c.clock(n) != "" && (s == nil || c[n][telemetry.GPUClock] < c[s.Rank][telemetry.GPUClock]) {
			s = &Slow{Rank: n, Part: "GPU"}
		}
	}
	if s != nil {
		s.Text = fmt.Sprintf("%s may slow down the job: %s", rootcause.Ranks([]int{s.Rank}), strings.Join(c.causes(s.Rank), ", "))
	}
	return s
}
