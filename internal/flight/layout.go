package flight

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// The recorder's memory is a header, the table of groups, the table of call
// sites, and the ring of entries. It is read by processes of the same host
// only, so its numbers are in the host's byte order.
//
// A value that changes alone is one aligned word: it is there or it is not. An
// entry, which has many, is published by its check, the hash of its words,
// written last, and zero while they are being written. A reader takes the
// check, the words, and the check again, and believes them if all three agree:
// it never takes a half-written entry for a whole one, whenever the writer was
// stopped. Within the process, reading and writing exclude each other by
// Recorder.mu, so that only the check has to be atomic.

const (
	magic   = 0x676f6464_70666c31 // "goddpfl1"
	version = 2

	maxGroups = 256
	maxSites  = 256

	maxAwaited = 64
)

// header is what there is once. What comes before closed is written by New.
type header struct {
	magic      uint64 // written last
	version    uint32
	capacity   uint32 // of the ring, in entries
	rank       int32
	worldSize  int32
	localRank  int32
	generation int32
	pid        int64
	started    int64 // Unix time in ns, like all times here
	host       [64]byte
	job        [64]byte
	run        [64]byte

	closed     int64 // when; 0 until Close
	aborted    int64 // when; 0 until Abort
	groupCount uint64
	siteCount  uint64
	lostGroups uint64 // groups that found the table full
	lostSites  uint64 // calls from sites that did
	reasonAt   int64  // when; 0 until the reason and who was awaited are whole

	reason       [1024]byte
	awaitedCount uint64
	awaited      [maxAwaited]uint32
}

// groupRecord is one of this process's groups.
type groupRecord struct {
	name      [112]byte
	rank      int32
	size      int32
	enqueued  uint64 // number of the latest collective
	started   uint64
	completed uint64
}

// siteRecord is a place that calls come from: a line for each frame.
type siteRecord struct{ text [1024]byte }

// slot holds one entry.
type slot struct {
	check   uint64 // of the entry; atomic
	running int64  // when; 0: it is queued
	ended   int64  // when; negative if it failed; 0: it has not ended
	entry
}

type entry struct {
	number  uint64 // from 1; its slot is (number-1) mod capacity
	queued  int64
	timeout int64 // ns
	seq     uint64
	count   int64
	root    int32
	group   uint16 // index into the table of groups
	site    uint16 // 1 + index into the table of sites; 0: not known
	kind    uint8
	op      uint8
	dtype   uint8
	_       [5]byte
	name    [48]byte
}

const entryWords = unsafe.Sizeof(entry{}) / 8

// sum is the check of an entry, never 0. Its two halves are multiplied side by
// side.
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

// read returns a slot's entry, or false if there is none or it is being
// written.
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

// Size is the memory that a recorder of so many entries needs, in bytes.
func Size(entries int) int {
	return int(unsafe.Sizeof(header{}) + maxGroups*unsafe.Sizeof(groupRecord{}) +
		maxSites*unsafe.Sizeof(siteRecord{}) + uintptr(entries)*unsafe.Sizeof(slot{}))
}

// layout is a recorder's memory seen as its parts.
type layout struct {
	*header
	groups []groupRecord
	sites  []siteRecord
	slots  []slot
}

// overlay lays the parts over mem, with as many slots as it has room for.
func overlay(mem []byte) (l layout, err error) {
	if len(mem) < Size(1) {
		return l, fmt.Errorf("a recorder needs at least %d bytes, not %d", Size(1), len(mem))
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(p)%unsafe.Alignof(header{}) != 0 {
		return l, fmt.Errorf("a recorder's memory is aligned to %d bytes, not at %p", unsafe.Alignof(header{}), p)
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
