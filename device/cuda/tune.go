//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import (
	"context"
	"math"
	"time"
)

// A race runs each way several times, in turns, so that no way alone runs while the GPU's clock is
// at its highest.
const (
	raceRounds = 5
	raceRuns   = 3    // the number of runs that are timed together
	raceGain   = 0.97 // another way must take less than this part of the first way's time to be chosen
	raceWait   = 5 * time.Second
)

// race times several ways to compute one thing, which run enqueues on s, and returns the number of
// the fastest. It returns 0, the default way, unless another way is clearly faster, and also if the
// race cannot be completed. An error is the device's.
//
// race blocks the host until the stream has run the race, for a bounded time. No collective that
// the stream waits for should be running.
func (d *gpuDevice) race(s *gpuStream, ways int, run func(way int) error) (best int, err error) {
	var stamps []C.uintptr_t // the CUevents before, between and after the ways' runs, in order
	defer func() { d.events.put(stamps...) }()
	stamp := func() error {
		h, err := d.events.record(s.handle)
		if err == nil {
			stamps = append(stamps, h)
		}
		return err
	}
	for range raceRounds {
		for way := range ways {
			if stamp() != nil {
				return 0, d.Err()
			}
			for range raceRuns {
				if run(way) != nil {
					return 0, d.Err()
				}
			}
			if stamp() != nil {
				return 0, d.Err()
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), raceWait)
	defer cancel()
	if s.Sync(ctx) != nil {
		return 0, d.Err()
	}
	var first, fastest time.Duration
	for way := range ways {
		least := time.Duration(math.MaxInt64)
		for round := range raceRounds {
			at := 2 * (round*ways + way)
			took, err := d.elapsed(stamps[at], stamps[at+1])
			if err != nil {
				return 0, err
			}
			least = min(least, took)
		}
		switch {
		case way == 0:
			first, fastest = least, least
		case least < fastest && float64(least) < raceGain*float64(first):
			best, fastest = way, least
		}
	}
	return best, nil
}
