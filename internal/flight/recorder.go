package flight

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goddp/goddp/internal/backend"
)

// Identity is whose record it is.
type Identity struct {
	Rank, WorldSize, LocalRank int
	Generation                 int    // which of the job's attempts
	Job                        string // the launcher's random id of the job, or ""
	Run                        string // what the job is called by its user, or ""
}

// ErrInUse: the memory belongs to a recorder of this process that was not
// closed.
var ErrInUse = errors.New("flight: the memory is another recorder's")

// Recorder records the calls of one process. Its methods are safe for
// concurrent use, and a nil Recorder records nothing.
type Recorder struct {
	// mu orders the goroutines of this process. Others read meanwhile.
	mu    sync.Mutex
	mem   layout
	begun uint64 // number of the latest entry
	next  int    // slot of the next one
	seen  [16]seen
	known map[stack]uint16 // call sites by stack
}

// Group is the recorder's end of one process group. A nil Group records
// nothing.
type Group struct {
	r      *Recorder
	index  uint16
	record *groupRecord
}

// Entry is a call that was recorded. The zero Entry stands for one that was
// not. An update that comes after the ring has gone round does nothing.
type Entry struct {
	group  *Group
	slot   *slot
	number uint64 // as long as the slot has it too, the slot is this entry's
	seq    uint64 // 0 of Send and Recv
}

// New starts a record in mem, which is zero or holds the record of a life that
// has ended, and stays the recorder's. nil means memory of this process. The
// ring has as many entries, or fewer if mem has no room for them.
func New(mem []byte, id Identity, entries int) (*Recorder, error) {
	if entries < 1 {
		return nil, fmt.Errorf("flight: a ring of %d entries: want at least 1", entries)
	}
	if mem == nil {
		mem = heap(Size(entries))
	}
	l, err := overlay(mem)
	if err != nil {
		return nil, fmt.Errorf("flight: %w", err)
	}
	pid := int64(os.Getpid())
	if l.magic == magic && l.pid == pid && l.closed == 0 {
		return nil, ErrInUse
	}
	clear(mem)
	l.slots = l.slots[:min(len(l.slots), entries)]
	host, _ := os.Hostname() // "" says as much as an error
	l.version, l.capacity = version, uint32(len(l.slots))
	l.rank, l.worldSize, l.localRank, l.generation = int32(id.Rank), int32(id.WorldSize), int32(id.LocalRank), int32(id.Generation)
	l.pid, l.started = pid, time.Now().UnixNano()
	copy(l.host[:], host)
	copy(l.job[:], id.Job)
	copy(l.run[:], id.Run)
	atomic.StoreUint64(&l.magic, magic)
	return &Recorder{mem: l, known: map[stack]uint16{}}, nil
}

// heap returns zeroed memory that is aligned for a recorder.
func heap(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
}

// Group starts the record of a group. name is equal on all its ranks, such as
// "default", or "default/split/1/0"; rank and size are the group's own.
func (r *Recorder) Group(name string, rank, size int) *Group {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.mem.groupCount
	if n >= maxGroups {
		r.mem.lostGroups++
		return nil
	}
	g := &Group{r: r, index: uint16(n), record: &r.mem.groups[n]}
	copy(g.record.name[:], name)
	g.record.rank, g.record.size = int32(rank), int32(size)
	r.mem.groupCount++
	return g
}

// Begin records a call that has its number, or 0 if it was refused before it got one:
// it was queued at that time, in Unix nanoseconds. Where it comes from is read off the stack. It allocates nothing but
// for a call site that is new.
func (g *Group) Begin(c *backend.Call, at int64) Entry {
	if g == nil {
		return Entry{}
	}
	print := c.Fingerprint()
	var pcs stack
	callers((*[maxFrames]uintptr)(&pcs))

	r := g.r
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
	s := &r.mem.slots[r.next]
	if r.next++; r.next == len(r.mem.slots) {
		r.next = 0
	}
	atomic.SwapUint64(&s.check, 0) // unlike a store, a barrier also for what follows
	s.running, s.ended = 0, 0
	s.entry = entry{
		number: r.begun, queued: at, timeout: int64(c.Timeout), seq: print.Seq,
		count: int64(print.Count), root: int32(print.Root),
		group: g.index, site: r.site(&pcs),
		kind: uint8(print.Kind), op: uint8(print.Op), dtype: uint8(print.DType),
	}
	copy(s.name[:], c.Name)
	atomic.StoreUint64(&s.check, s.sum())
	e := Entry{group: g, slot: s, number: r.begun}
	if collective(print.Kind) && print.Seq > 0 {
		e.seq = print.Seq
		g.record.enqueued = e.seq
	}
	return e
}

// collective tells whether a call of this kind is numbered among those that
// all ranks make.
func collective(k backend.Kind) bool { return k != backend.Send && k != backend.Recv }

// Running records that the call's turn has come.
func (e Entry) Running(at time.Time) {
	if e.group == nil {
		return
	}
	r := e.group.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.slot.number == e.number {
		e.slot.running = at.UnixNano()
	}
	e.group.record.started = max(e.group.record.started, e.seq)
}

// Ended records that the call is done, or failed.
func (e Entry) Ended(at time.Time, failed bool) {
	if e.group == nil {
		return
	}
	r := e.group.r
	r.mu.Lock()
	defer r.mu.Unlock()
	end := at.UnixNano()
	if failed {
		end = -end
	} else {
		e.group.record.completed = max(e.group.record.completed, e.seq)
	}
	if e.slot.number == e.number {
		e.slot.ended = end
	}
}

// Reason records why a group failed, and, where it was a deadline, which ranks
// of the job were waited for. The first reason stays.
func (r *Recorder) Reason(text string, awaited ...int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem.reasonAt == 0 {
		copy(r.mem.reason[:], text)
		for i, rank := range awaited[:min(len(awaited), maxAwaited)] {
			r.mem.awaited[i], r.mem.awaitedCount = uint32(rank), uint64(i+1)
		}
		atomic.StoreInt64(&r.mem.reasonAt, time.Now().UnixNano()) // after the text
	}
}

// Abort records that the program aborts a group, unless there is a Reason by now: what
// fails then is its own doing, and the reason that others give. The first one stays.
func (r *Recorder) Abort() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem.aborted == 0 && r.mem.reasonAt == 0 {
		r.mem.aborted = time.Now().UnixNano()
	}
}

// Dump is what is recorded now; nil of a nil Recorder.
func (r *Recorder) Dump() *Dump {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return decode(r.mem)
}

// Close records that the process left its job in good order. The memory may
// then be used for another record.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mem.closed = time.Now().UnixNano()
}
