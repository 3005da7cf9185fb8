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

// Identity says which process of which job a record belongs to.
type Identity struct {
	Rank, WorldSize, LocalRank int
	Generation                 int    // how often the launcher has restarted the job
	Job                        string // the launcher's random id of the job, or ""
	Run                        string // the name that the user gave the job, or ""
}

// ErrInUse is the error of New if mem belongs to a recorder of this process that is not closed.
var ErrInUse = errors.New("flight: a Recorder of this process that is not closed already uses the memory")

// Recorder records the calls of one process. Its methods are safe for
// concurrent use, and a nil Recorder records nothing.
type Recorder struct {
	// mu excludes the goroutines of this process from each other. Other processes read the
	// memory without it.
	mu     sync.Mutex
	mem    layout
	latest uint64 // number of the latest entry
	next   int    // slot of the next entry
	seen   [16]seen
	known  map[stack]uint16 // numbers of the call sites, by stack
}

// Group records the calls of one process group. A nil Group records nothing.
type Group struct {
	r      *Recorder
	index  uint16
	record *groupRecord
}

// Entry is a recorded call. The zero Entry stands for a call that is not recorded. If the ring has
// overwritten the entry, updates do nothing.
type Entry struct {
	group  *Group
	slot   *slot
	number uint64 // the slot still holds this entry if it has the same number
	seq    uint64 // number of the collective; 0 for Send and Recv
}

// New starts a record in mem, which must be zero or hold the record of a process that has ended.
// The recorder then owns mem. If mem is nil, New allocates memory. The ring has the given number
// of entries, or fewer if mem is too small for them.
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
	host, _ := os.Hostname() // "" if the name is not known
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

// Group starts the record of a process group. name must be equal on all its ranks, such as
// "default" or "default/1/0". rank is this process's rank in the group, and size the group's size.
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

// Begin records a call as queued at a time in Unix nanoseconds. The call's number is 0 if the
// call was rejected before it got one. Begin takes the call site from the goroutine's stack. It
// allocates memory only for a new call site.
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
	r.latest++
	s := &r.mem.slots[r.next]
	if r.next++; r.next == len(r.mem.slots) {
		r.next = 0
	}
	atomic.SwapUint64(&s.check, 0) // a swap is also a barrier for the writes that follow; a store is not
	s.running, s.ended = 0, 0
	s.entry = entry{
		number: r.latest, queued: at, timeout: int64(c.Timeout), seq: print.Seq,
		count: int64(print.Count), root: int32(print.Root),
		group: g.index, site: r.site(&pcs),
		kind: uint8(print.Kind), op: uint8(print.Op), dtype: uint8(print.DType),
	}
	copy(s.name[:], c.Name)
	atomic.StoreUint64(&s.check, s.sum())
	e := Entry{group: g, slot: s, number: r.latest}
	if collective(print.Kind) && print.Seq > 0 {
		e.seq = print.Seq
		g.record.enqueued = e.seq
	}
	return e
}

// collective reports whether calls of this kind are numbered in the sequence that all ranks share.
func collective(k backend.Kind) bool { return k != backend.Send && k != backend.Recv }

// Running records that the call has started to run.
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

// Ended records that the call is done or has failed.
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

// Reason records why a group failed and, if a deadline passed, the ranks of the job that the call
// waited for. causedBy is the rank whose failure made this one fail; nil if it originated here. Only
// the first Reason is recorded.
func (r *Recorder) Reason(text string, causedBy *int, awaited ...int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem.reasonAt == 0 {
		copy(r.mem.reason[:], text)
		if causedBy != nil {
			r.mem.causedBy = 1 + uint64(*causedBy)
		}
		for i, rank := range awaited[:min(len(awaited), maxAwaited)] {
			r.mem.awaited[i], r.mem.awaitedCount = uint32(rank), uint64(i+1)
		}
		atomic.StoreInt64(&r.mem.reasonAt, time.Now().UnixNano()) // last: a reader uses the text only if the time is set
	}
}

// Abort records that the program aborts a group, unless a Reason is recorded already. Later
// failures, and the reasons that other ranks give, are then effects of this Abort. Only the
// first Abort is recorded.
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

// Dump returns the current record. A nil Recorder returns nil.
func (r *Recorder) Dump() *Dump {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return decode(r.mem)
}

// Close records that the process left its job without a failure. The memory may then be used for
// another recorder.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mem.closed = time.Now().UnixNano()
}
