package flight

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// The recorder's memory consists of a header, the table of groups, the table of call sites,
// and the ring of entries. Numbers are in the host's byte order, because only processes of the
// same host read the memory.
//
// A value that changes on its own is one aligned word, which is written atomically. An entry has
// many words. Its check is a hash of these words. The writer sets the check to zero, writes the
// words, and then writes the check. A reader loads the check, the words, and the check again,
// and accepts the entry if both checks equal the hash of the words. So it never accepts a
// half-written entry, even if the writer was stopped at any point. Within the process,
// Recorder.mu excludes readers and writers from each other, so only the check must be atomic.

const (
	magic   = 0x676f6464_70666c31 // "goddpfl1"
	version = 3

	maxGroups = 256
	maxSites  = 256

	maxAwaited = 64
)

// header holds the values that exist once. New writes the fields before closed.
type header struct {
	magic      uint64 // written last
	version    uint32
	capacity   uint32 // number of entries of the ring
	rank       int32
	worldSize  int32
	localRank  int32
	generation int32
	pid        int64
	started    int64 // in Unix nanoseconds, like all times in this memory
	host       [64]byte
	job        [64]byte
	run        [64]byte

	closed     int64 // time of Close; 0 before
	aborted    int64 // time of Abort; 0 before
	groupCount uint64
	siteCount  uint64
	lostGroups uint64 // number of groups that did not fit into the table
	lostSites  uint64 // number of calls whose site did not fit into the table
	reasonAt   int64  // time of Reason; 0 until reason, causedBy and awaited are complete

	reason       [1024]byte
	causedBy     uint64 // 1 + the rank that caused the failure; 0 if the failure originated in this rank
	awaitedCount uint64
	awaited      [maxAwaited]uint32
}

// groupRecord is the record of one of this process's groups.
type groupRecord struct {
	name      [112]byte
	rank      int32
	size      int32
	enqueued  uint64 // number of the latest collective
	started   uint64
	completed uint64
}

// siteRecord is a call site: one line of text for each frame.
type siteRecord struct{ text [1024]byte }

// slot holds one entry.
type slot struct {
	check   uint64 // hash of the entry; accessed atomically
	running int64  // when the call started to run; 0 while it is queued
	ended   int64  // when the call ended, negative if it failed; 0 while it has not ended
	entry
}

type entry struct {
	number  uint64 // number of the call, from 1; the entry is in slot (number-1) mod capacity
	queued  int64
	timeout int64 // ns
	seq     uint64
	count   int64
	root    int32
	group   uint16 // index into the table of groups
	site    uint16 // 1 + index into the table of call sites; 0 if unknown
	kind    uint8
	op      uint8
	dtype   uint8
	_       [5]byte
	name    [48]byte
}

const entryWords = unsafe.Sizeof(entry{}) / 8

// sum returns the check of an entry, which is never 0. It computes two independent halves, which a
// processor multiplies in parallel.
func (e *entry) sum() uint64 {
	const factor = 0x9e3779b97f4a7c15
	words := (*[entryWords]uint64)(unsafe.Pointer(e))
	a, b := uint64(factor), uint64(0)
	for i := 1; i < len(words); i += 2 {
		a = a*factor + words[i-1]
		b = b*factor + words[i]
	}
	a = a*factor + words[len(words)-1]
	return a ^ bits.RotateLeft64(b, 32) | 1
}

// read returns the entry in a slot. ok is false if the slot is empty or a writer is changing it.
func (s *slot) read() (e entry, running, ended int64, ok bool) {
	check := atomic.LoadUint64(&s.check)
	running, ended = atomic.LoadInt64(&s.running), atomic.LoadInt64(&s.ended)
	from := (*[entryWords]uint64)(unsafe.Pointer(&s.entry))
	to := (*[entryWords]uint64)(unsafe.Pointer(&e))
	for i := range from {
		to[i] = atomic.LoadUint64(&from[i])
	}
	return e, running, ended, check != 0 && check == e.sum() && check == atomic.LoadUint64(&s.check)
}

// Size returns the size in bytes of a recorder whose ring buffer holds the given number of entries.
func Size(entries int) int {
	return int(unsafe.Sizeof(header{}) + maxGroups*unsafe.Sizeof(groupRecord{}) +
		maxSites*unsafe.Sizeof(siteRecord{}) + uintptr(entries)*unsafe.Sizeof(slot{}))
}

// layout points to the parts of a recorder's memory.
type layout struct {
	*header
	groups []groupRecord
	sites  []siteRecord
	slots  []slot
}

// overlay lays out a recorder in mem, with as many slots as fit.
func overlay(mem []byte) (l layout, err error) {
	if len(mem) < Size(1) {
		return l, fmt.Errorf("a recorder needs at least %d bytes, not %d", Size(1), len(mem))
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(p)%unsafe.Alignof(header{}) != 0 {
		return l, fmt.Errorf("a recorder's memory must be aligned to %d bytes, got the address %p", unsafe.Alignof(header{}), p)
	}
	l.header = (*header)(p)
	p = unsafe.Add(p, unsafe.Sizeof(header{}))
	l.groups = unsafe.Slice((*groupRecord)(p), maxGroups)
	p = unsafe.Add(p, maxGroups*unsafe.Sizeof(groupRecord{}))
	l.sites = unsafe.Slice((*siteRecord)(p), maxSites)
	p = unsafe.Add(p, maxSites*unsafe.Sizeof(siteRecord{}))
	l.slots = unsafe.Slice((*slot)(p), (len(mem)-Size(0))/int(unsafe.Sizeof(slot{})))
	return l, nil
}
