package job

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Phase is what a worker does.
type Phase uint32

// The phases. Join is the time from a replacement's start to its first step.
const (
	Join Phase = iota
	Forward
	Backward
	FirstBucket // from the start of the first bucket's reduction on
	LastBucket
	Optimizer
	Evaluation
	Save
	Regroup
	Send // the state, to a rank that lacks it
	Transfer
	Phases
)

func (p Phase) String() string {
	return [...]string{"join", "forward", "backward", "first bucket", "last bucket", "optimizer", "evaluation", "save", "regroup", "send", "transfer"}[p]
}

// Slot is what a worker and the campaign tell each other. Both access it atomically, because it is in shared memory.
type Slot struct {
	PID   atomic.Int64
	Phase atomic.Uint32
	Epoch atomic.Uint32 // the epoch of the last committed step
	Time  atomic.Int64  // when the first step of that epoch was committed, in Unix nanoseconds
	// The campaign sets Lost when it kills the worker, and Hold to a phase that the worker shall not go on from.
	Lost atomic.Bool
	Hold atomic.Uint32 // Join: none
}

// Enter notes that the worker begins a phase, and waits while the campaign holds it there.
func (s *Slot) Enter(p Phase) {
	for s.Phase.Store(uint32(p)); p != Join && s.Hold.Load() == uint32(p); {
		time.Sleep(100 * time.Microsecond)
	}
}

// In reports whether the worker is in a phase.
func (s *Slot) In(p Phase) bool { return Phase(s.Phase.Load()) == p }

// Signal sends a signal to the worker.
func (s *Slot) Signal(sig syscall.Signal) error { return syscall.Kill(int(s.PID.Load()), sig) }

// maxWorkers bounds the number of workers of a campaign.
const maxWorkers = 4096

// Board is the shared memory with a slot for each worker, by its number.
type Board [maxWorkers]Slot

// OpenBoard maps the board of a campaign, which it makes if the file does not exist.
func OpenBoard(path string) (*Board, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(Board{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return (*Board)(unsafe.Pointer(&mem[0])), nil
}

// Running returns the workers that were started and are not lost.
func (b *Board) Running() (workers []int) {
	for id := range b {
		if s := &b[id]; s.PID.Load() != 0 && !s.Lost.Load() {
			workers = append(workers, id)
		}
	}
	return workers
}

// Training returns the latest epoch in which a worker that runs has committed a step, and how many have.
func (b *Board) Training() (latest, workers int) {
	for _, id := range b.Running() {
		e := int(b[id].Epoch.Load())
		if e > latest {
			latest, workers = e, 0
		}
		if e > 0 && e == latest {
			workers++
		}
	}
	return latest, workers
}
