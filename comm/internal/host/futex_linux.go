package host

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A waiting rank first spins, because the other rank usually arrives soon, and then sleeps.
// Sleeping and waking take about as long as spinFor, so a wait costs at most twice the optimum. A
// sleeping rank wakes after sleepSlice to check whether the group broke.
const (
	spinFor    = 60 * time.Microsecond
	sleepSlice = 10 * time.Millisecond
)

// Operations of futex(2) on shared memory.
const (
	futexWait = 0
	futexWake = 1
)

// barrierCounter is a counter in shared memory. One rank increments it when it arrives at a
// barrier; the others wait for it. It fills a cache line.
type barrierCounter struct {
	count    atomic.Uint32 // the futex
	sleepers atomic.Uint32
	_        [56]byte
}

// hasReached reports whether the counter is at target or beyond. The counter may wrap around.
func (c *barrierCounter) hasReached(target uint32) bool { return int32(c.count.Load()-target) >= 0 }

// advance increments the counter and wakes sleeping ranks.
func (c *barrierCounter) advance() {
	c.count.Add(1)
	if c.sleepers.Load() > 0 {
		unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.count)), futexWake, math.MaxInt32)
	}
}

// spin waits a short time for the counter to reach target. After the first iterations it yields the
// CPU each time, because the other rank may need it.
func (c *barrierCounter) spin(target uint32) bool {
	for range 200 {
		if c.hasReached(target) {
			return true
		}
	}
	for start := time.Now(); time.Since(start) < spinFor; {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		if c.hasReached(target) {
			return true
		}
	}
	return false
}

// sleep blocks until the counter changes, at most for sleepSlice.
func (c *barrierCounter) sleep(target uint32) {
	c.sleepers.Add(1)
	defer c.sleepers.Add(^uint32(0))
	now := c.count.Load()
	if int32(now-target) >= 0 {
		return
	}
	slice := unix.NsecToTimespec(int64(sleepSlice))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.count)), futexWait, uintptr(now), uintptr(unsafe.Pointer(&slice)), 0, 0)
}
