//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"sync"
	"time"
)

// clock puts events on the host's clock: an anchor event whose time is known,
// and CUDA's measure of the time between two events. That is a float32 of
// milliseconds and the two clocks drift, so the anchor is renewed.
type clock struct {
	d      *gpuDevice
	stream *gpuStream // idle but for anchors, so that they are reached at once

	mu     sync.Mutex
	anchor C.uintptr_t // a CUevent with a time; 0 before the first
	at     time.Time   // the anchor's
	stale  time.Time   // when to renew it
}

const (
	anchorLife  = 10 * time.Second      // a float32 then resolves a microsecond
	anchorTries = 5                     // the quickest counts
	anchorWait  = time.Second           // for the first, on a device that is just waking
	anchorError = 20 * time.Microsecond // what a renewal must be known to, else the old anchor stays
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
		return fmt.Errorf("%s: an event was not reached within %v", d.name, anchorWait)
	}
	return nil
}

// renew records anchors and keeps the one whose time is known best, if that
// is to within bound. Where it is not, it is tried again soon.
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

// time is when a CUevent that was reached was.
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
