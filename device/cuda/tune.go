//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import (
	"context"
	"slices"
	"time"
)

// A race runs the alternatives in turn, in several rounds. The first rounds warm up the GPU: its clock is higher until
// products have drawn power for a while, and at the higher clock other alternatives may be the fastest.
const (
	raceRounds = 7
	raceWarm   = 2                    // warm-up rounds
	raceTime   = 3 * time.Millisecond // minimum time of runs that are timed together
	raceRuns   = 64                   // the maximum number of such runs
	raceGain   = 0.98                 // an alternative must take less than this fraction of the default's time
	raceWait   = 20 * time.Second
)

// race times several alternatives, and returns the index of the fastest. The function run enqueues an alternative on
// s. race returns 0, the default, unless another alternative is clearly faster. decided is false if the race could not
// be completed. An error comes from the device.
//
// race blocks the host until the stream has run the race, for a bounded time. No collective that
// the stream waits for should be running.
func (d *gpuDevice) race(s *gpuStream, ways int, run func(way int) error) (best int, decided bool, err error) {
	var stamps []C.uintptr_t // the CUevents before, between and after the runs of the alternatives, in order
	defer func() { d.events.put(stamps...) }()
	stamp := func() error {
		h, err := d.events.record(s.handle)
		if err == nil {
			stamps = append(stamps, h)
		}
		return err
	}
	// timed runs an alternative several times between two stamps.
	timed := func(way, runs int) error {
		if err := stamp(); err != nil {
			return err
		}
		for range runs {
			if err := run(way); err != nil {
				return err
			}
		}
		return stamp()
	}
	ctx, cancel := context.WithTimeout(d.life, raceWait)
	defer cancel()
	took := func(i int) (time.Duration, error) { return d.elapsed(stamps[2*i], stamps[2*i+1]) }
	if run(0) != nil || timed(0, 1) != nil || s.Sync(ctx) != nil { // the first run may load the kernel
		return 0, false, d.Err()
	}
	one, err := took(0)
	if err != nil {
		return 0, false, err
	}
	runs := int(min(raceTime/max(one, 1)+1, raceRuns))
	for range raceRounds {
		for way := range ways {
			if timed(way, runs) != nil {
				return 0, false, d.Err()
			}
		}
	}
	if s.Sync(ctx) != nil {
		return 0, false, d.Err()
	}
	medians := make([]time.Duration, ways)
	for way := range ways {
		var all []time.Duration
		for round := raceWarm; round < raceRounds; round++ {
			t, err := took(1 + round*ways + way)
			if err != nil {
				return 0, false, err
			}
			all = append(all, t)
		}
		slices.Sort(all)
		medians[way] = all[len(all)/2]
		if medians[way] < medians[best] && float64(medians[way]) < raceGain*float64(medians[0]) {
			best = way
		}
	}
	return best, true, nil
}
