//go:build cgo && linux

package nccl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// rankOfOne is one of several ranks on one device. It has a stream but no communicator.
type rankOfOne struct {
	*smallAllReduce
	builder opBuilder
	stream  cudaStream
	x       device.Tensor
}

// reduce enqueues an all-reduce of the first n elements.
func (r *rankOfOne) reduce(n int) error {
	r.builder.ops = r.builder.ops[:0]
	x := r.x.Range(0, n)
	r.builder.add(&backend.Call{Kind: backend.AllReduce, Dst: x, Src: x})
	if !r.handles(r.builder.ops) {
		return fmt.Errorf("%d elements are too many for a small all-reduce", n)
	}
	_, err := r.stream.Enqueue(false, func(stream, event uintptr) error { return r.enqueue(stream, event, &r.builder.ops[0]) })
	return err
}

// sent reports whether rank r has received data of a call of rank of: its last call, or an earlier
// one if before is not 0. The calls have wide lines or not.
func (r *rankOfOne) sent(ctx context.Context, of *rankOfOne, before uint32, wide bool) (bool, error) {
	call, ranks := uint32(of.args.call)-before, uint32(r.args.ranks)
	from, size := (call%slotCopies*ranks+uint32(of.args.rank))*uint32(r.args.lines)*lineSize, lineSize
	if wide {
		from, size = uint32(r.args.wide)+(call%slotCopies*uint32(wideSteps(int(ranks)))*ranks+uint32(of.args.rank))*uint32(r.args.groups)*groupSize, groupSize
	}
	got := make([]byte, size)
	at := device.DeviceBuffer(uintptr(r.slots.addr)+uintptr(from), size, nil)
	if err := r.group.dev.CopyOut(ctx, r.group.dev.Compute(), got, at); err != nil {
		return false, err
	}
	for w := range slices.Chunk(got, 4) {
		if binary.LittleEndian.Uint32(w) == call { // no element has these bits
			return true, nil
		}
	}
	return false, nil
}

// stopOne stops rank r, which reduces n elements: the call that is stopped has already sent its data to the
// peer, and no later call sends any.
func (r *rankOfOne) stopOne(ctx context.Context, peer *rankOfOne, n int, wide bool) error {
	r.halt()
	for range 2 {
		if err := errors.Join(r.reduce(n), r.stream.Sync(ctx)); err != nil {
			return err
		}
	}
	for _, before := range []uint32{1, 0} {
		sent, err := peer.sent(ctx, r, before, wide)
		if err == nil && sent != (before == 1) {
			err = fmt.Errorf("rank %d of %d, stopped with %d elements, %d calls before the last: sent %v", r.args.rank, r.args.ranks, n, before, sent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SmallAllReduceOnOneGPU lets ranks on one device reduce float32s, up to as many as a slot holds, with wide
// lines and without. Then it stops two of them.
func SmallAllReduceOnOneGPU(ctx context.Context, dev device.Device, ranks int) (err error) {
	gpu := dev.(cudaDevice)
	lib, err := openLibrary(gpu)
	if err != nil {
		return err
	}
	all := make([]*rankOfOne, ranks)
	most, mostNarrow := mostWide(ranks)/device.Float32.Size(), wideFrom/device.Float32.Size()
	for i := range all {
		g := newGroup(ctx, backend.Config{Rank: i, Size: ranks, Timeout: defaultTimeout, Log: slog.New(slog.DiscardHandler)}, Options{}, gpu)
		g.lib = lib
		r := &rankOfOne{smallAllReduce: &smallAllReduce{group: g}, builder: opBuilder{rank: i, size: ranks}}
		if _, err := r.prepare(ctx, true); err != nil {
			return err
		}
		defer r.free()
		defer r.halt() // ends the kernels of the other ranks if one fails
		s, err := dev.NewStream(true)
		if err != nil {
			return err
		}
		defer s.Close()
		r.stream = s.(cudaStream)
		buf, err := dev.Alloc(most * device.Float32.Size())
		if err != nil {
			return err
		}
		defer dev.Free(buf)
		r.x = device.NewTensor(buf, device.Float32, most)
		all[i] = r
	}
	for _, r := range all {
		for p, peer := range all {
			r.args.slots[p] = peer.args.slots[p]
		}
	}
	value := func(rank, call, i int) float32 { return float32((rank*31 + call*7 + i) % 1000) }
	host := make([]float32, most)
	bytes := device.HostTensor(host, device.Float32).Buf.Host()
	for call, n := range []int{1, 1001, most, 7, most, most - 1, mostNarrow, mostNarrow - 1, mostNarrow + 1, 50001} {
		for _, r := range all {
			if r.narrow = nil; n == mostNarrow || n == mostNarrow-1 {
				r.narrow = errors.New("to test lines that are not wide")
			}
			for i := range host {
				host[i] = value(r.builder.rank, call, i)
			}
			if err := errors.Join(dev.CopyIn(dev.Compute(), r.x.Buf, bytes), dev.Compute().Sync(ctx)); err != nil {
				return err
			}
		}
		for _, r := range all {
			if err := r.reduce(n); err != nil {
				return err
			}
		}
		for _, r := range all {
			if err := errors.Join(r.stream.Sync(ctx), dev.CopyOut(ctx, dev.Compute(), bytes, r.x.Buf)); err != nil {
				return err
			}
			for i, got := range host {
				want := value(r.builder.rank, call, i)
				for p := 0; p < ranks && i < n; p++ {
					if p != r.builder.rank {
						want += value(p, call, i)
					}
				}
				if got != want {
					return fmt.Errorf("rank %d of %d, call %d of %d elements: element %d is %v, want %v", r.builder.rank, ranks, call, n, i, got, want)
				}
			}
		}
	}
	last := all[ranks-1]
	return errors.Join(last.stopOne(ctx, all[0], 1, false), all[0].stopOne(ctx, last, wideFrom/device.Float32.Size(), true))
}
