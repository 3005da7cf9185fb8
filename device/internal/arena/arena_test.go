package arena

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/device"
)

// pool is device memory of a fixed size, from which an arena allocates.
type pool struct {
	size, used int64
	given      uintptr // bytes, ever
	released   int
}

func (p *pool) arena() *Arena {
	return New(func(size int) (device.Buffer, error) {
		if p.used+int64(size) > p.size {
			return device.Buffer{}, &device.OutOfMemoryError{Device: "pool", Asked: int64(size), InUse: p.used, Free: p.size - p.used}
		}
		p.used += int64(size)
		if size >= 1<<20 { // no test looks into a block of this size
			p.given += uintptr(size)
			return device.DeviceBuffer(p.given, size, nil), nil
		}
		return device.HostBuffer(make([]byte, size), nil), nil
	}, func(b device.Buffer) {
		p.used -= int64(b.Len())
		p.released++
	})
}

func alloc(t *testing.T, a *Arena, size int) device.Buffer {
	t.Helper()
	b, err := a.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBlockSize(t *testing.T) {
	for _, c := range []struct{ size, want int }{
		{1, 256}, {256, 256}, {257, 512}, {1024, 1024}, {1025, 1280}, {4097, 4352}, {8193, 8704},
		{1 << 20, 1 << 20}, {1<<20 + 1, 17 << 16}, {9 << 20, 9 << 20}, {9<<20 + 1, 19 << 19}, {100<<20 + 1, 102 << 20},
	} {
		if got := blockSize(c.size); got != c.want {
			t.Errorf("blockSize(%d) = %d, want %d", c.size, got, c.want)
		}
	}
	for size := 1; size < 20<<20; size += 1 + size/37 {
		if got := blockSize(size); got < size || got%device.Align != 0 || got-size > max(size/16, device.Align) || blockSize(got) != got {
			t.Fatalf("blockSize(%d) = %d", size, got)
		}
	}
}

func TestArenaReuse(t *testing.T) {
	p := &pool{size: 1 << 30}
	a := p.arena()
	small, big := alloc(t, a, 1000), alloc(t, a, 1500)
	a.Free(small)
	a.Free(big)
	if b := alloc(t, a, 900); b.Addr() != small.Addr() || b.Len() != 900 {
		t.Error("the smallest block that fits was not used")
	}
	if b := alloc(t, a, 1024); b.Addr() != big.Addr() {
		t.Error("a block half as large again was not used")
	}
	tooBig := alloc(t, a, 10000)
	a.Free(tooBig)
	if b := alloc(t, a, 256); b.Addr() == tooBig.Addr() {
		t.Error("a block of 10240 bytes was spent on 256")
	}
	want := device.MemoryStats{InUse: 1024 + 1536 + 256, Peak: 1024 + 1536 + 10240, Cached: 10240, Allocs: 4}
	if got := a.Stats(); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
	if n := a.Trim(); n != 10240 || a.Stats().Cached != 0 || p.released != 1 {
		t.Errorf("Trim gave back %d bytes in %d blocks, want 10240 in 1", n, p.released)
	}
	a.Close()
	if p.used != 0 || a.Stats().InUse != 0 {
		t.Errorf("after Close, %d bytes of the pool are used and %d counted", p.used, a.Stats().InUse)
	}
}

// From 32 MiB on, a cached block serves only sizes that it exceeds by at most a sixteenth, while the arena holds
// little more than was in use at once.
func TestArenaFitsLargeBlocks(t *testing.T) {
	for _, c := range []struct {
		cached, size int // in MiB
		beside       int // in use, in MiB
		reused       bool
	}{
		{30, 20, 256, true}, {40, 31, 256, true}, {36, 32, 256, false}, {34, 32, 256, true}, {48, 32, 256, false},
		{48, 40, 120, false}, {48, 40, 100, true}, {48, 32, 0, true}, {64, 32, 32, false},
	} {
		a := (&pool{size: 1 << 30}).arena()
		alloc(t, a, c.beside<<20)
		a.Free(alloc(t, a, c.cached<<20))
		before := a.Stats().Allocs
		alloc(t, a, c.size<<20)
		if got := a.Stats().Allocs == before; got != c.reused {
			t.Errorf("beside %d MiB in use, a cached block of %d MiB serves %d MiB: %v, want %v", c.beside, c.cached, c.size, got, c.reused)
		}
	}
}

// In a steady state, Alloc and Free allocate nothing on Go's heap and do not call the device.
func TestArenaSteadyState(t *testing.T) {
	a := (&pool{size: 1 << 30}).arena()
	var held [10]device.Buffer
	step := func() {
		for i := range held {
			held[i] = alloc(t, a, 100<<i)
		}
		for _, b := range held {
			a.Free(b)
		}
	}
	step()
	before := a.Stats().Allocs
	if n := testing.AllocsPerRun(100, step); n > 0 {
		t.Errorf("%v Go allocations in a step", n)
	}
	if now := a.Stats().Allocs; now != before {
		t.Errorf("%d blocks asked of the device in the steady state", now-before)
	}
}

// When memory runs out, the arena first releases its cache, and then runs the garbage collector to
// free buffers that are unreachable.
func TestArenaReclaims(t *testing.T) {
	p := &pool{size: 10 << 10}
	a := p.arena()
	a.Free(alloc(t, a, 8<<10))
	held := alloc(t, a, 4<<10) // 4 KiB do not use the cached block of 8 KiB
	if p.released != 1 {
		t.Fatalf("%d blocks given back, want the one cached", p.released)
	}

	_, err := a.Alloc(8 << 10)
	var oom *device.OutOfMemoryError
	if !errors.As(err, &oom) || !errors.Is(err, device.ErrOutOfMemory) {
		t.Fatalf("error %v, want a device.OutOfMemoryError", err)
	}
	if want := (device.OutOfMemoryError{Device: "pool", Asked: 8 << 10, InUse: 4 << 10, Free: 6 << 10}); *oom != want {
		t.Errorf("error %+v, want %+v", *oom, want)
	}

	abandon(a, held)
	if _, err := a.Alloc(8 << 10); err != nil {
		t.Errorf("with a buffer that nobody can reach: %v", err)
	}
}

// abandon leaves b to an owner that is unreachable at once.
//
//go:noinline
func abandon(a *Arena, b device.Buffer) {
	owner := new([64]byte)
	runtime.AddCleanup(owner, a.Free, b)
}

// The arena of a pool returns no cached block by itself, and uses larger blocks if several graphs share it.
func TestPool(t *testing.T) {
	p := &pool{size: 10 << 20}
	a := p.arena()
	a.isPool = true
	b := alloc(t, a, 6<<20)
	a.Free(b)
	if _, err := a.Alloc(8 << 20); !errors.Is(err, device.ErrOutOfMemory) || p.released > 0 {
		t.Errorf("Alloc: %v, and %d blocks were returned to the device", err, p.released)
	}
	if small := alloc(t, a, 2<<20); small.Addr() == b.Addr() {
		t.Error("a graph's small size took a block of three times the size")
	}
	a.Share()
	if small := alloc(t, a, 2<<20); small.Addr() != b.Addr() {
		t.Error("another graph's block was not used")
	}
	if a.Trim(); p.released > 0 {
		t.Error("Trim returned a block in use")
	}
}

func TestArenaMisuse(t *testing.T) {
	a := (&pool{size: 1 << 20}).arena()
	b, other := alloc(t, a, 300), alloc(t, a, 300)
	freed := alloc(t, a, 300)
	a.Free(freed)
	for _, c := range []struct {
		what string
		b    device.Buffer
		want []string
	}{
		{"a part", b.Slice(0, 100), []string{"Free of 100 bytes", "300 bytes"}},
		{"a middle", b.Slice(256, 44), []string{"Free of 44 bytes", "not one of the 2 buffers in use"}},
		{"foreign memory", device.HostBuffer(make([]byte, 300), nil), []string{"Free of 300 bytes", "not one of the 2"}},
		{"what is free", freed, []string{"Free of 300 bytes", "already freed (the block has 512 bytes)"}},
	} {
		func() {
			defer func() {
				msg := fmt.Sprint(recover())
				for _, w := range c.want {
					if !strings.Contains(msg, w) {
						t.Errorf("Free of %s: %q does not hold %q", c.what, msg, w)
					}
				}
			}()
			a.Free(c.b)
		}()
	}
	if got := a.Stats().InUse; got != 1024 {
		t.Errorf("%d bytes in use after misuse, want 1024", got)
	}
	a.Free(b) // the arena still works
	a.Free(other)
}

func TestArenaConcurrent(t *testing.T) {
	a := (&pool{size: 1 << 30}).arena()
	var wg sync.WaitGroup
	for id := range byte(8) {
		wg.Go(func() {
			for i := range 500 {
				b, err := a.Alloc(100 + 400*(i%9))
				if err != nil {
					t.Error(err)
					return
				}
				mem := b.Host()
				mem[0], mem[len(mem)-1] = id, id
				runtime.Gosched()
				if mem[0] != id || mem[len(mem)-1] != id {
					t.Error("a block was given out twice")
				}
				a.Free(b)
			}
		})
	}
	wg.Wait()
	if got := a.Stats().InUse; got != 0 {
		t.Errorf("%d bytes in use at the end", got)
	}
}
