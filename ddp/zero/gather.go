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
	trace := profile.Of(s.pg.Device())
	for i := len(s.buckets) - 1; i >= 0; i-- {
		b := s.buckets[i]
		b.gather = s.pg.With(&comm.CallOptions{Name: b.name + " of parameters", After: b.done}).AllGather(b.flat, b.shard)
		if trace.On() {
			started, ended := b.gather.Times()
			trace.Add(profile.Span{
				Track: profile.Communication, Name: "AllGather " + b.name, Begin: started, End: ended,
				Args: []profile.Arg{{Name: "bucket", Value: i}, {Name: "bytes", Value: b.flat.Bytes()}},
			})
		}
		works = append(works, b.gather)
	}
	return works
}

// Use makes the compute stream wait for the bucket's gather, unless it does so already. A captured step waits for all
// gathers before its launch.
func (b *bucket) Use() error {
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

// Read is Use. If the gather fails, Committed says so.
func (b *bucket) Read() { b.Use() }

// useAll makes the compute stream wait for all gathers.
func (s *shards) useAll() error {
	for _, b := range s.buckets {
		if err := b.Use(); err != nil {
			return err
		}
	}
	return nil
}
