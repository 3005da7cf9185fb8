package job

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
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
	Transfer
	Phases
)

func (p Phase) String() string {
	return [...]string{"join", "forward", "backward", "first bucket", "last bucket", "optimizer", "evaluation", "save", "regroup", "transfer"}[p]
}

// Slot is what a worker tells the campaign. Both access it atomically, because it is in shared memory.
type Slot struct {
	PID   atomic.Int64
	Phase atomic.Uint32
	Epoch atomic.Uint32 // the epoch of the last committed step
	Time  atomic.Int64  // when the first step of that epoch was committed, in Unix nanoseconds
}

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
