//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import (
	"context"
	"math"
	"time"
)

// A race runs every way a few times, in turns so that none has the device at
// its best alone.
const (
	raceRounds = 5
	raceRuns   = 3    // timed together
	raceGain   = 0.97 // of the first way's time: what is worth another
	raceWait   = 5 * time.Second
)

// race times the ways to do one thing, which run enqueues on s, and returns the
// number of the fastest: 0, the way to do it without knowing better, unless
// another gains something, or where something stops the race. An error is the
// device's.
//
// It waits for the stream, on the host and within bounds: no collective should
// be running that the stream waits for.
func (d *gpuDevice) race(s *gpuStream, ways int, run func(way int) error) (best int, err error) {
	var stamps []C.uintptr_t // around each way's runs, in order
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
