package devicetest

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// checkMemory checks that buffers are aligned, do not overlap, are counted by Memory, and are
// reused.
func checkMemory(r *rig) {
	before := r.dev.Memory()
	sizes := []int{1, 2, 255, 256, 257, 1000, 4096, 70000, 1 << 20, 1<<20 + 1, 3 << 20}
	var live []device.Buffer
	total := int64(0)
	for _, n := range append(sizes, sizes...) {
		b, err := r.dev.Alloc(n)
		r.ok("Alloc", err)
		if b.Len() != n || b.Addr()%device.Align != 0 {
			r.fail("Alloc of %d bytes: got %d at %#x", n, b.Len(), b.Addr())
		}
		live = append(live, b)
		total += int64(n)
	}
	byAddr := slices.SortedFunc(slices.Values(live), func(a, b device.Buffer) int { return cmp.Compare(a.Addr(), b.Addr()) })
	for i := 1; i < len(byAddr); i++ {
		if end := byAddr[i-1].Addr() + uintptr(byAddr[i-1].Len()); end > byAddr[i].Addr() {
			r.fail("buffers overlap: one ends at %#x, the next begins at %#x", end, byAddr[i].Addr())
		}
	}
	full := r.dev.Memory()
	if full.InUse < before.InUse+total || full.Peak < full.InUse {
		r.fail("memory after allocating %d bytes: %+v, before: %+v", total, full, before)
	}
	for _, b := range live {
		r.dev.Free(b)
	}
	freed := r.dev.Memory()
	if freed.InUse != before.InUse || freed.Peak != full.Peak || freed.Cached < total {
		r.fail("memory after freeing %d bytes: %+v, before: %+v", total, freed, full)
	}
	for range 10 {
		for _, n := range sizes {
			b, err := r.dev.Alloc(n)
			r.ok("Alloc", err)
			r.dev.Free(b)
		}
	}
	if now := r.dev.Memory(); now.Allocs != freed.Allocs || now.InUse != freed.InUse {
		r.fail("memory after sizes freed before: %+v, before: %+v", now, freed)
	}
	empty, err := r.dev.Alloc(0)
	r.ok("Alloc of nothing", err)
	if empty.Len() != 0 {
		r.fail("Alloc of nothing: %d bytes", empty.Len())
	}
	r.dev.Free(empty)
}

// checkMemoryConcurrent runs goroutines that each allocate, mark and free buffers.
func checkMemoryConcurrent(r *rig) {
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for id := range byte(8) {
		wg.Go(func() {
			var held []device.Buffer
			for i := range 200 {
				b, err := r.dev.Alloc(100 + 700*(i%7))
				if err != nil {
					errs <- err
					return
				}
				if host := b.Host(); host != nil {
					for j := range host {
						host[j] = id
					}
				}
				if held = append(held, b); len(held) == 5 {
					oldest := held[0]
					for _, v := range oldest.Host() {
						if v != id {
							errs <- errors.New("two goroutines were given the same memory")
							return
						}
					}
					r.dev.Free(oldest)
					held = held[1:]
				}
			}
			for _, b := range held {
				r.dev.Free(b)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		r.fail("concurrent Alloc and Free: %w", err)
	default:
	}
}

// checkMemoryMisuse checks that Free panics for memory that the caller does not own.
func checkMemoryMisuse(r *rig) {
	b, err := r.dev.Alloc(1000)
	r.ok("Alloc", err)
	r.panics("Free of a part", func() { r.dev.Free(b.Slice(256, 100)) })
	r.panics("Free of a beginning", func() { r.dev.Free(b.Slice(0, 100)) })
	r.panics("Free of foreign memory", func() { r.dev.Free(device.HostBuffer(make([]byte, 1000), nil)) })
	r.dev.Free(b)
	r.panics("second Free", func() { r.dev.Free(b) })
	h, err := r.dev.AllocHost(1000)
	r.ok("AllocHost", err)
	r.panics("Free of a part of the host's", func() { r.dev.Free(h.Slice(256, 100)) })
	r.dev.Free(h)
	r.panics("second Free of the host's", func() { r.dev.Free(h) })
}

// panics fails unless f panics with an error.
func (r *rig) panics(what string, f func()) {
	defer func() {
		if _, ok := recover().(error); !ok {
			r.fail("%s: did not panic with an error", what)
		}
	}()
	f()
}

// checkStreams checks that events order streams, and what events report.
func checkStreams(r *rig) {
	start := time.Now()
	other, err := r.dev.NewStream(true)
	r.ok("NewStream", err)
	plain, err := r.dev.NewStream(false)
	r.ok("NewStream", err)
	const n = 1 << 20
	x, y := r.put(newArray(n)), r.put(newArray(n))
	var last time.Time
	for i := range 10 {
		// Each stream reads the result of the stream before it.
		r.ok("Fill", r.k.Fill(r.s, x.Tensor, float64(i)))
		e := r.s.Record()
		r.ok("WaitFor", other.WaitFor(e))
		r.ok("Copy", r.k.Copy(other, y.Tensor, x.Tensor))
		f := other.Record()
		r.ok("WaitFor", plain.WaitFor(f))
		got := make([]byte, y.Bytes())
		r.ok("CopyOut", r.dev.CopyOut(r.ctx, plain, got, y.Buf))
		for j, v := range decode(r.dt, got) {
			if v != float64(i) {
				r.fail("round %d: element %d is %v behind the event that it was written before", i, j, v)
			}
		}
		for _, ev := range []device.Event{e, f} {
			r.ok("Event.Sync", ev.Sync(r.ctx))
			done, err := ev.Done()
			r.ok("Done", err)
			if at := ev.Time(); !done || at.IsZero() || at.Before(last) || at.Before(start) {
				r.fail("round %d: a synchronised event is done: %v, at %v, the one before at %v", i, done, at, last)
			}
			last = ev.Time()
		}
		r.ok("WaitFor", r.s.WaitFor(f)) // x may be overwritten
	}
	// A mark orders streams as an event with a time does.
	for i := range 10 {
		r.ok("Fill", r.k.Fill(r.s, x.Tensor, float64(100+i)))
		r.ok("WaitFor", other.WaitFor(r.s.Mark()))
		r.ok("Copy", r.k.Copy(other, y.Tensor, x.Tensor))
		m := other.Mark()
		r.ok("WaitFor", r.s.WaitFor(m))
		got := make([]byte, y.Bytes())
		r.ok("CopyOut", r.dev.CopyOut(r.ctx, r.s, got, y.Buf))
		for j, v := range decode(r.dt, got) {
			if v != float64(100+i) {
				r.fail("round %d: element %d is %v behind the mark that it was written before", i, j, v)
			}
		}
		r.ok("Sync of a mark", m.Sync(r.ctx))
		if done, err := m.Done(); !done || err != nil {
			r.fail("round %d: a synchronised mark is done: %v, %v", i, done, err)
		}
	}
	r.ok("Sync", other.Sync(r.ctx))
	r.ok("Close", other.Close())
	r.ok("Close", plain.Close())
	if s := r.dev.Compute(); s != r.s {
		r.fail("Compute gave two streams, %v and %v", s, r.s)
	}
}

// checkValues checks that the state of a layer is made once for each device.
func checkValues(r *rig) {
	type key struct{}
	made := 0
	for range 2 {
		v := kernels.Of(r.dev).Values().Get(key{}, func() any { made++; return &made })
		if v != &made {
			r.fail("Values gave %v, not what was made", v)
		}
	}
	if made != 1 {
		r.fail("Values made %d values for one key", made)
	}
}
