// Package arena implements the caching allocator of all devices.
package arena

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
)

// Bounds.
const (
	// maxStep bounds the rounding of large blocks, in bytes.
	maxStep = 2 << 20
	// largeBlock is the size in bytes from which cached blocks must fit closely. Otherwise long-lived memory, such as
	// an optimizer's state, would waste the excess forever.
	largeBlock = 32 << 20
	// reclaimWait bounds the wait for the clean-ups of a garbage collection.
	reclaimWait = time.Second
	// reclaimRest bounds the wait for the remaining clean-ups after the first one.
	reclaimRest = 20 * time.Millisecond
)

// Arena is a caching allocator. It keeps a freed block for the next allocation of about the same size. Allocating
// from a device costs a page fault per 4 KiB on a host and a full synchronization on a GPU, and every training
// step allocates the same sizes.
//
// A size is rounded up to a multiple of a step. The step is a sixteenth of the power of two below the size, but at
// least [device.Align] and at most 2 MiB. Alloc returns the smallest cached block that is large enough and at most
// 1.5 times the size. For a size of 32 MiB or more, the cached block may be only a sixteenth larger, unless with a
// new block the arena would hold over 1.25 times its peak usage. The arena neither splits nor merges blocks, so it
// loses memory to rounding but never to fragmentation.
//
// If the device has no memory left, the arena first returns all cached blocks to the device. Then it runs Go's
// garbage collector, which frees buffers with unreachable owners. If that does not help, it returns the device's
// error.
//
// Free makes a block available at once. The users of an arena order their work on one stream, so the
// next user of the block runs after the last one. All methods are safe for concurrent use.
type Arena struct {
	raw     func(size int) (device.Buffer, error)
	release func(device.Buffer)

	isPool bool // see NewPool

	mu      sync.Mutex
	live    map[uintptr]block // by address
	classes []class           // by size, ascending; an emptied class stays
	stats   device.MemoryStats
	slack   int // how many times its size an allocation may get; 0 means the rule of Arena
}

// block is memory in use: the whole block, and the requested size.
type block struct {
	whole device.Buffer
	asked int
}

// class holds the cached blocks of one size. The last one was freed most recently, and is most likely in the CPU's
// cache.
type class struct {
	size int
	free []device.Buffer
}

// New returns an arena. raw gets memory aligned to device.Align from the device, or fails with a
// [*device.OutOfMemoryError]. release returns memory to the device. The arena calls them one at a time.
func New(raw func(size int) (device.Buffer, error), release func(device.Buffer)) *Arena {
	return &Arena{raw: raw, release: release, live: map[uintptr]block{}}
}

// NewPool is New for the memory of graphs. Graphs use its cached blocks in each launch, so only Trim and Close return them
// to the device.
func NewPool(raw func(size int) (device.Buffer, error), release func(device.Buffer)) *Arena {
	a := New(raw, release)
	a.isPool = true
	return a
}

// Share makes Alloc take cached blocks of up to 8 times the size: those of a graph whose sizes differ. It would waste the
// memory of the first graph of a pool, whose large blocks would serve small sizes.
func (a *Arena) Share() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slack = 8
}

// Alloc returns size bytes with undefined content. For 0 bytes it returns an empty Buffer, which need not
// be freed. The error is that of the function raw, which was passed to New.
func (a *Arena) Alloc(size int) (device.Buffer, error) {
	if size < 0 {
		panic(fmt.Errorf("arena: Alloc of %d bytes", size))
	}
	if size == 0 {
		return device.Buffer{}, nil
	}
	b, err := a.alloc(size)
	if err == nil {
		return b, nil
	}
	collect()
	// Clean-ups run concurrently: some may not have run yet.
	for wait := time.Microsecond; err != nil && wait < reclaimRest; wait *= 2 {
		time.Sleep(wait)
		b, err = a.alloc(size)
	}
	return b, err
}

// alloc serves size from the cache, else from the device. If the device has no memory left, alloc first
// returns the cached blocks to it.
func (a *Arena) alloc(size int) (device.Buffer, error) {
	want := blockSize(size)
	a.mu.Lock()
	defer a.mu.Unlock()
	b, ok := a.cached(want)
	if !ok {
		var err error
		if b, err = a.raw(want); err != nil && !a.isPool && a.trim() > 0 {
			b, err = a.raw(want)
		}
		if err != nil {
			return device.Buffer{}, err
		}
		a.stats.Allocs++
	}
	a.live[b.Addr()] = block{b, size}
	a.stats.InUse += int64(b.Len())
	a.stats.Peak = max(a.stats.Peak, a.stats.InUse)
	return b.Slice(0, size), nil
}

// cached removes the best-fitting block from the cache.
func (a *Arena) cached(want int) (device.Buffer, bool) {
	most := want + want/2
	if want >= largeBlock && a.stats.InUse+a.stats.Cached+int64(want) <= a.stats.Peak+a.stats.Peak/4 {
		most = want + want/16
	}
	if a.slack > 0 {
		most = want * a.slack
	}
	i, _ := a.find(want)
	for ; i < len(a.classes) && a.classes[i].size <= most; i++ {
		free := a.classes[i].free
		if len(free) == 0 {
			continue
		}
		b := free[len(free)-1]
		free[len(free)-1] = device.Buffer{} // the cache must not keep the buffer alive
		a.classes[i].free = free[:len(free)-1]
		a.stats.Cached -= int64(b.Len())
		return b, true
	}
	return device.Buffer{}, false
}

// find returns the index of a size in classes, and whether classes contains it.
func (a *Arena) find(size int) (int, bool) {
	return slices.BinarySearchFunc(a.classes, size, func(c class, size int) int { return c.size - size })
}

// Free frees a Buffer that Alloc returned. It panics for any other Buffer, such as a slice of a Buffer, or a Buffer
// that was freed before.
func (a *Arena) Free(b device.Buffer) {
	if b.Len() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l, ok := a.live[b.Addr()]
	if !ok {
		panic(a.notLive(b))
	}
	if l.asked != b.Len() {
		panic(fmt.Errorf("arena: Free of %d bytes at %#x, but the buffer there has %d bytes", b.Len(), b.Addr(), l.asked))
	}
	delete(a.live, b.Addr())
	n := l.whole.Len()
	i, ok := a.find(n)
	if !ok {
		a.classes = slices.Insert(a.classes, i, class{size: n})
	}
	a.classes[i].free = append(a.classes[i].free, l.whole)
	a.stats.InUse -= int64(n)
	a.stats.Cached += int64(n)
}

// Has reports whether b was returned by Alloc and not freed since.
func (a *Arena) Has(b device.Buffer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.live[b.Addr()]
	return ok
}

// notLive returns an error that explains why b cannot be freed.
func (a *Arena) notLive(b device.Buffer) error {
	for _, c := range a.classes {
		for _, f := range c.free {
			if f.Addr() == b.Addr() {
				return fmt.Errorf("arena: Free of %d bytes at %#x, which were already freed (the block has %d bytes)", b.Len(), b.Addr(), c.size)
			}
		}
	}
	return fmt.Errorf("arena: Free of %d bytes at %#x, which are not one of the %d buffers in use", b.Len(), b.Addr(), len(a.live))
}

// Trim returns all cached blocks to the device. It returns their size in bytes.
func (a *Arena) Trim() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trim()
}

func (a *Arena) trim() int64 {
	for _, c := range a.classes {
		for _, b := range c.free {
			a.release(b)
		}
	}
	n := a.stats.Cached
	a.classes, a.stats.Cached = nil, 0
	return n
}

// Close returns all memory to the device, including memory in use.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trim()
	for _, l := range a.live {
		a.release(l.whole)
	}
	clear(a.live)
	a.stats.InUse = 0
}

// Stats returns statistics, counted in whole blocks.
func (a *Arena) Stats() device.MemoryStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// blockSize rounds a size up to the size of its class.
func blockSize(size int) int {
	step := 1 << max(bits.Len(uint(size))-5, 0) // a sixteenth of the power of two below
	step = min(max(step, device.Align), maxStep)
	return (size + step - 1) / step * step
}

// collect runs Go's garbage collector, and waits for its clean-ups, which free the buffers of
// unreachable owners.
func collect() {
	done := make(chan struct{})
	runtime.AddCleanup(new([32]byte), func(done chan struct{}) { close(done) }, done)
	runtime.GC()
	select {
	case <-done:
	case <-time.After(reclaimWait):
	}
}
