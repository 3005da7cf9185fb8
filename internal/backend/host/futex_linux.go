package host

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// How a rank waits for another one's arrival. It looks again and again for a
// little while, since the other is most often just about to come, and then
// sleeps, since the processor has better things to do. Sleeping and being
// woken takes about as long as spinFor, so that waiting never costs more than
// twice the best choice in hindsight. A sleeper wakes up now and then to see
// whether the group broke.
const (
	spinFor    = 60 * time.Microsecond
	sleepSlice = 10 * time.Millisecond
)

// Operations of futex(2), on memory that several processes share.
const (
	futexWait = 0
	futexWake = 1
)

// arrival is a counter in shared memory that one rank counts up and the
// others wait for. It fills a cache line.
type arrival struct {
	ticks    atomic.Uint32 // the futex
	sleepers atomic.Uint32
	_        [56]byte
}

// reached tells whether the counter, which wraps around, has come to tick.
func (a *arrival) reached(tick uint32) bool { return int32(a.ticks.Load()-tick) >= 0 }

// advance counts one further and wakes who waits.
func (a *arrival) advance() {
	a.ticks.Add(1)
	if a.sleepers.Load() > 0 {
		unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&a.ticks)), futexWake, math.MaxInt32)
	}
}

// spin waits a little for tick. After the first looks it offers the processor
// to others at every turn: the rank waited for may need this very one.
func (a *arrival) spin(tick uint32) bool {
	for range 200 {
		if a.reached(tick) {
			return true
		}
	}
	for start := time.Now(); time.Since(start) < spinFor; {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		if a.reached(tick) {
			return true
		}
	}
	return false
}

// sleep waits for tick, or a slice of time, without using the processor.
func (a *arrival) sleep(tick uint32) {
	a.sleepers.Add(1)
	defer a.sleepers.Add(^uint32(0))
	now := a.ticks.Load()
	if int32(now-tick) >= 0 {
		return
	}
	slice := unix.NsecToTimespec(int64(sleepSlice))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&a.ticks)), futexWait, uintptr(now), uintptr(unsafe.Pointer(&slice)), 0, 0)
}
