package zero

import (
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/profile"
)

// gather starts the gathers of all buckets. They begin with the last bucket, whose parameters are used first, and each
// waits for its bucket's updates.
func (s *shards) gather() (works []*comm.Work) {
	for i := len(s.buckets) - 1; i >= 0; i-- {
		b := s.buckets[i]
		b.gather = s.pg.With(&comm.CallOptions{Name: b.name + " of parameters", After: b.done}).AllGather(b.flat, b.shard)
		s.traceGather(b, b.gather)
		works = append(works, b.gather)
	}
	return works
}

// traceGather adds the gather of b to the device's trace.
func (s *shards) traceGather(b *bucket, w *comm.Work) {
	trace := profile.Of(s.pg.Device())
	if !trace.On() {
		return
	}
	started, ended := w.Times()
	trace.Add(profile.Span{
		Track: profile.Communication, Name: "AllGather " + b.name, Begin: started, End: ended,
		Args: []profile.Arg{{Name: "bucket", Value: b.index}, {Name: "bytes", Value: b.flat.Bytes()}},
	})
}

// Use makes the compute stream wait until all parameters of the bucket are gathered. It does nothing if the stream waits
// for them already.
func (b *bucket) Use(op uint64, isTaped bool) error {
	if b.slot != nil {
		return b.shards.useInSlot(b, op, isTaped)
	}
	return b.await()
}

// Read is Use for the whole bucket. If a gather fails, Committed says so. In stage 3 it panics with a [*NotWholeError],
// except within Model.Whole and Model.OnRank.
func (b *bucket) Read(param string) {
	switch f := &b.shards.flow; {
	case b.slot == nil || f.isWhole:
		b.await()
	case !f.leads:
		panic(&NotWholeError{b.shards.rank, param})
	default:
		if err := b.shards.useInSlot(b, 0, false); err != nil {
			panic(gatherError{err})
		}
	}
}

// await makes the compute stream wait for the bucket's gather after the last step. A captured step waits for all
// gathers before its launch.
func (b *bucket) await() error {
	if b.gather == nil {
		return nil
	}
	s := b.shards
	if r := capture.Of(s.pg.Device()); r != nil {
		s.capture(r)
		return nil
	}
	if err := b.gather.Wait(s.pg.Context()); err != nil {
		s.pg.Abort(err)
		for _, b := range s.buckets {
			if b.gather != nil {
				b.gather.Sync(s.pg.Context()) // returns soon: the group is broken. Then no gather accesses the buckets any more
			}
		}
		return fmt.Errorf("gathering parameters: %w", err)
	}
	b.gather = nil
	return nil
}

// awaitAll makes the compute stream wait for all gathers, because a step writes what they read.
func (s *shards) awaitAll() error {
	for _, b := range s.buckets {
		if err := b.await(); err != nil {
			return err
		}
	}
	return s.settle()
}
