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

// side is one of the implementations that are compared. calls makes n all-reduces of t back to
// back, waits for the last one, and returns how long that took.
type side struct {
	name  string
	calls func(ctx context.Context, t device.Tensor, n int) (time.Duration, error)
}

// goddp returns the side of a process group.
func goddp(pg *comm.ProcessGroup) side {
	return side{"goddp", func(ctx context.Context, t device.Tensor, n int) (time.Duration, error) {
		var last *comm.Work
		start := time.Now()
		for range n {
			last = pg.AllReduce(t, comm.Sum)
		}
		err := last.Sync(ctx) // if an earlier call failed, the group is broken and this fails too
		return time.Since(start), err
	}}
}

// bench holds one rank's part of the benchmark.
type bench struct {
	options
	pg    *comm.ProcessGroup
	sides [sides]side
}

// measure returns the times of a call at one size, for all turns of all sides.
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

// turn returns how long a side takes for its calls.
func (b *bench) turn(ctx context.Context, s side, t device.Tensor) (time.Duration, error) {
	for range 2 { // after the second one the ranks continue at nearly the same time
		if _, err := s.calls(ctx, t.Range(0, 1), 1); err != nil {
			return 0, err
		}
	}
	return s.calls(ctx, t, b.iters)
}

// check lets a side sum ones and checks the result.
func (b *bench) check(ctx context.Context, s side, t device.Tensor) error {
	dev, data := b.pg.Device(), make([]byte, 0, t.Bytes())
	for range t.Len() {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(1))
	}
	if err := dev.CopyIn(dev.Compute(), t.Buf, data); err != nil {
		return err
	}
	if err := dev.Compute().Sync(ctx); err != nil { // C's stream does not wait for the compute stream
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
