//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"sync"
	"time"
)

// clock converts the times of events to the host's clock. It uses an anchor, an event whose time on
// the host's clock is known, and CUDA's measure of the time between two events. That measure is a
// float32 of milliseconds, and the two clocks drift, so the clock renews the anchor.
type clock struct {
	d      *gpuDevice
	stream *gpuStream // used only for anchors, so each anchor is reached at once

	mu     sync.Mutex
	anchor C.uintptr_t // a CUevent with a time; 0 before the first anchor
	at     time.Time   // the anchor's time on the host's clock
	stale  time.Time   // the time at which to renew the anchor
}

const (
	anchorLife  = 10 * time.Second      // a float32 of milliseconds resolves a microsecond up to this time
	anchorTries = 5                     // renew keeps the most precise anchor
	anchorWait  = time.Second           // maximum error of the first anchor, because the device may be waking
	anchorError = 20 * time.Microsecond // maximum error of a renewal; otherwise the old anchor is kept
)

func (c *clock) start(d *gpuDevice) (err error) {
	c.d = d
	if c.stream, err = d.newStream(true); err != nil {
		return err
	}
	if err := c.renew(anchorWait); err != nil {
		return err
	}
	if c.anchor == 0 {
		return fmt.Errorf("%s: the GPU did not reach an event within %v", d.name, anchorWait)
	}
	return nil
}

// renew records several anchors and keeps the most precise one, if its error is within bound.
// Otherwise it keeps the old anchor, and a later call retries soon.
func (c *clock) renew(bound time.Duration) error {
	c.stale = time.Now().Add(time.Second)
	for range anchorTries {
		before := time.Now()
		h, err := c.d.events.record(c.stream.handle)
		if err != nil {
			return err
		}
		for {
			done, err := c.d.query(h)
			if err != nil {
				return err
			}
			took := time.Since(before)
			if done && took < bound {
				c.anchor, h = h, c.anchor
				c.at, bound = before.Add(took/2), took
				c.stale = before.Add(anchorLife)
			}
			if done || took > bound {
				break
			}
		}
		if h != 0 {
			c.d.events.put(h)
		}
	}
	return nil
}

// time returns the time, on the host's clock, at which a completed CUevent was reached.
func (c *clock) time(h C.uintptr_t) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.stale) {
		if err := c.renew(anchorError); err != nil {
			return time.Time{}, err
		}
	}
	took, err := c.d.elapsed(c.anchor, h)
	if err != nil {
		return time.Time{}, err
	}
	return c.at.Add(took), nil
}
