//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import (
	"context"
	"slices"
	"time"
)

// A race runs the alternatives in turn, in several rounds, and drops those that fall behind. The first rounds warm up the
// GPU: its clock is higher until products have drawn power for a while, and at the higher clock other alternatives may be
// the fastest.
const (
	raceRounds = 7
	raceWarm   = 2    // warm-up rounds
	raceRuns   = 64   // the maximum number of such runs
	raceBehind = 1.1  // an alternative that took more than this multiple of the least time is dropped
	raceGain   = 0.98 // an alternative must take less than this fraction of the default's time
	raceWait   = 20 * time.Second
)

// race times several alternatives, and returns the index of the fastest. The function run enqueues an alternative
// on s. A measurement is the mean of several runs in a row, which together take about the time `together`. The
// alternatives are compared by the medians of their measurements. Alternative 0 is the default: race returns 0 if no other
// one is clearly faster, or if the race could not be completed.
//
// race blocks the host until the stream has run the race, for a bounded time. No collective that
// the stream waits for should be running.
func (d *gpuDevice) race(s *gpuStream, ways int, together time.Duration, run func(way int) error) (best int) {
	ctx, cancel := context.WithTimeout(d.life, raceWait)
	defer cancel()
	// lap returns how long each of some alternatives takes, on average of several runs.
	lap := func(of []int, runs int) ([]time.Duration, error) {
		stamps := make([]C.uintptr_t, 0, len(of)+1) // the CUevents between the alternatives
		defer func() { d.events.put(stamps...) }()
		stamp := func() error {
			h, err := d.events.record(s.handle)
			if err == nil {
				stamps = append(stamps, h)
			}
			return err
		}
		if err := stamp(); err != nil {
			return nil, err
		}
		for _, way := range of {
			for range runs {
				if err := run(way); err != nil {
					return nil, err
				}
			}
			if err := stamp(); err != nil {
				return nil, err
			}
		}
		if err := s.Sync(ctx); err != nil {
			return nil, err
		}
		took := make([]time.Duration, len(of))
		for i := range of {
			all, err := d.elapsed(stamps[i], stamps[i+1])
			if err != nil {
				return nil, err
			}
			took[i] = all / time.Duration(runs)
		}
		return took, nil
	}
	if run(0) != nil { // the first run may load the kernel
		return 0
	}
	one, err := lap([]int{0}, 1)
	if err != nil {
		return 0
	}
	runs := int(min(together/max(one[0], 1)+1, raceRuns))
	racing := make([]int, ways)
	for way := range racing {
		racing[way] = way
	}
	times, least := make([][]time.Duration, ways), make([]time.Duration, ways)
	for round := range raceRounds {
		took, err := lap(racing, runs)
		if err != nil {
			return 0
		}
		fastest := slices.Min(took)
		for i, way := range racing {
			if round == 0 || took[i] < least[way] {
				least[way] = took[i]
			}
			if round >= raceWarm {
				times[way] = append(times[way], took[i])
			}
			fastest = min(fastest, least[way])
		}
		if round == 0 {
			continue // something else may have disturbed this lap
		}
		racing = slices.DeleteFunc(racing, func(way int) bool { return way > 0 && float64(least[way]) > raceBehind*float64(fastest) })
		if len(racing) == 1 {
			return 0
		}
	}
	median := func(way int) time.Duration {
		slices.Sort(times[way])
		return times[way][len(times[way])/2]
	}
	limit := time.Duration(raceGain * float64(median(0)))
	for _, way := range racing {
		if t := median(way); t < limit {
			best, limit = way, t
		}
	}
	return best
}
