package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// side is one of those that are compared. calls makes n all-reduces of t back to
// back, waits for the last, and says how long all of that took.
type side struct {
	name  string
	calls func(ctx context.Context, t device.Tensor, n int) (time.Duration, error)
}

// goddp is a group's side.
func goddp(pg *comm.ProcessGroup) side {
	return side{"goddp", func(ctx context.Context, t device.Tensor, n int) (time.Duration, error) {
		var last *comm.Work
		begun := time.Now()
		for range n {
			last = pg.AllReduce(t, comm.Sum)
		}
		err := last.Sync(ctx) // an earlier call that failed has broken the group
		return time.Since(begun), err
	}}
}

// bench is one rank's part.
type bench struct {
	options
	pg    *comm.ProcessGroup
	sides [sides]side
}

// measure takes the time of a call in every turn of all sides, at a size.
func (b *bench) measure(ctx context.Context, t device.Tensor) (times samples, err error) {
	for _, s := range slices.Backward(b.sides[:]) {
		if err := b.check(ctx, s, t); err != nil {
			return times, fmt.Errorf("%s: %w", s.name, err)
		}
		if _, err := s.calls(ctx, t, b.warmup); err != nil {
			return times, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for turn := range b.turns {
		for i := range b.sides {
			i = (i + turn) % sides
			took, err := b.turn(ctx, b.sides[i], t)
			if err != nil {
				return times, fmt.Errorf("%s: %w", b.sides[i].name, err)
			}
			times[i] = append(times[i], float64(took)/1e3/float64(b.iters))
		}
	}
	return times, nil
}

// turn is how long a side takes for its calls.
func (b *bench) turn(ctx context.Context, s side, t device.Tensor) (time.Duration, error) {
	for range 2 { // a long wait ends late on some rank, a short one does not
		if _, err := s.calls(ctx, t.Range(0, 1), 1); err != nil {
			return 0, err
		}
	}
	return s.calls(ctx, t, b.iters)
}

// check has a side add up a one of each rank.
func (b *bench) check(ctx context.Context, s side, t device.Tensor) error {
	dev, data := b.pg.Device(), make([]byte, 0, t.Bytes())
	for range t.Len() {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(1))
	}
	if err := dev.CopyIn(dev.Compute(), t.Buf, data); err != nil {
		return err
	}
	if err := dev.Compute().Sync(ctx); err != nil { // C's stream knows nothing of this one
		return err
	}
	if _, err := s.calls(ctx, t, 1); err != nil {
		return err
	}
	if err := dev.CopyOut(ctx, dev.Compute(), data, t.Buf); err != nil {
		return err
	}
	for i := range t.Len() {
		if got := math.Float32frombits(binary.NativeEndian.Uint32(data[4*i:])); got != float32(b.pg.Size()) {
			return fmt.Errorf("element %d of a sum of ones is %v, want %d", i, got, b.pg.Size())
		}
	}
	return nil
}
