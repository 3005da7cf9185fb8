package flight

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// ErrEmpty is the error of reading memory in which no recorder was ever started.
var ErrEmpty = errors.New("flight: nothing was recorded")

// Read reads the memory of a recorder. The process of the recorder may be dead, or may write while
// Read reads. The memory may contain anything. Read omits entries that are half written.
func Read(mem []byte) (*Dump, error) {
	l, err := overlay(mem)
	if err != nil {
		return nil, fmt.Errorf("flight: %w", err)
	}
	capacity := l.capacity // read once: another process may change it
	switch m := atomic.LoadUint64(&l.magic); {
	case m == 0:
		return nil, ErrEmpty
	case m != magic:
		return nil, fmt.Errorf("flight: not a flight record: it begins with %#x, want %#x", m, uint64(magic))
	case l.version != version:
		return nil, fmt.Errorf("flight: a record of version %d; this program reads version %d", l.version, version)
	case int64(capacity) > int64(len(l.slots)) || capacity == 0:
		return nil, fmt.Errorf("flight: the record's ring has %d entries, but its %d bytes hold at most %d", capacity, len(mem), len(l.slots))
	}
	l.slots = l.slots[:capacity]
	d := decode(l)
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("flight: %w", err)
	}
	return d, nil
}

// decode returns the record in a recorder's memory.
func decode(l layout) *Dump {
	d := &Dump{
		Version: int(l.version), Rank: int(l.rank), WorldSize: int(l.worldSize), LocalRank: int(l.localRank),
		Generation: int(l.generation), PID: int(l.pid), Host: text(l.host[:]), Job: text(l.job[:]), Run: text(l.run[:]),
		Started: moment(l.started), Taken: time.Now().Round(0), Closed: moment(l.closed), Aborted: moment(l.aborted),
		Capacity:   len(l.slots),
		LostGroups: l.lostGroups, LostSites: l.lostSites,
		Groups: []Membership{}, Sites: [][]Frame{}, Records: []Record{},
	}
	if d.ReasonAt = moment(l.reasonAt); !d.ReasonAt.IsZero() {
		d.Reason = text(l.reason[:])
		if l.causedBy > 0 {
			d.CausedBy = new(int(l.causedBy) - 1)
		}
		for _, rank := range l.awaited[:min(l.awaitedCount, maxAwaited)] {
			d.Awaited = append(d.Awaited, int(rank))
		}
	}
	for i := range l.groups[:min(l.groupCount, maxGroups)] {
		g := &l.groups[i]
		d.Groups = append(d.Groups, Membership{
			Name: text(g.name[:]), Rank: int(g.rank), Size: int(g.size),
			Enqueued: g.enqueued, Started: g.started, Completed: g.completed,
		})
	}
	for i := range l.slots {
		if r, ok := l.slots[i].decode(d.Groups); ok && (r.Number-1)%uint64(len(l.slots)) == uint64(i) {
			d.Records = append(d.Records, r)
		}
	}
	slices.SortFunc(d.Records, func(a, b Record) int { return cmp.Compare(a.Number, b.Number) })
	if n := len(d.Records); n > 0 {
		d.Recorded = d.Records[n-1].Number
	}
	// Read after the records, so that all call sites that they refer to are complete.
	for i := range l.sites[:min(l.siteCount, maxSites)] {
		d.Sites = append(d.Sites, parseFrames(text(l.sites[i].text[:])))
	}
	return d
}

// decode returns the call in a slot. It returns false if there is none or it is being written.
func (s *slot) decode(groups []Membership) (Record, bool) {
	e, running, ended, ok := s.read()
	if !ok || int(e.group) >= len(groups) {
		return Record{}, false
	}
	r := Record{
		Number: e.number, Group: groups[e.group].Name, Name: text(e.name[:]),
		Call: Call{backend.Fingerprint{
			Seq: e.seq, Kind: backend.Kind(e.kind), Op: backend.ReduceOp(e.op), DType: device.DType(e.dtype),
			Count: int(e.count), Root: int(e.root),
		}},
		Queued: moment(e.queued), Running: moment(running), Ended: moment(ended),
		Timeout: time.Duration(e.timeout), Site: int(e.site),
	}
	r.Bytes = r.Call.Count * r.Call.DType.Size()
	switch {
	case ended < 0:
		r.State.State, r.Ended = backend.Failed, moment(-ended)
	case ended > 0:
		r.State.State = backend.Done
	case running != 0:
		r.State.State = backend.Running
	}
	return r, true
}

// moment returns a recorded time. 0 is the zero Time.
func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// text returns the bytes before the first zero as a string.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return strings.ToValidUTF8(string(b), "")
}

// maxWorld is the largest size of a job that is accepted in a record.
const maxWorld = 1 << 20

// check returns an error if the dump contains values that no recorder writes.
func (d *Dump) check() error {
	if d.WorldSize < 1 || d.WorldSize > maxWorld || d.Rank < 0 || d.Rank >= d.WorldSize {
		return fmt.Errorf("invalid record of rank %d of %d: want a job of 1 to %d ranks, and a rank in it", d.Rank, d.WorldSize, maxWorld)
	}
	if d.CausedBy != nil && (*d.CausedBy < 0 || *d.CausedBy >= d.WorldSize) {
		return fmt.Errorf("invalid record of rank %d of %d: it names rank %d as the cause of its failure", d.Rank, d.WorldSize, *d.CausedBy)
	}
	for _, r := range slices.Concat(d.Awaited, d.Waits) {
		if r < 0 || r >= d.WorldSize {
			return fmt.Errorf("invalid record of rank %d of %d: it says that a call waited for rank %d", d.Rank, d.WorldSize, r)
		}
	}
	names := map[string]bool{}
	for _, g := range d.Groups {
		if g.Size < 1 || g.Size > d.WorldSize || g.Rank < 0 || g.Rank >= g.Size {
			return fmt.Errorf("invalid record of rank %d of %d: group %q of size %d, with rank %d in it", d.Rank, d.WorldSize, g.Name, g.Size, g.Rank)
		}
		names[g.Name] = true
	}
	for _, r := range d.Records {
		if !names[r.Group] {
			return fmt.Errorf("invalid record of rank %d of %d: call %d is of group %q, which is not listed", d.Rank, d.WorldSize, r.Number, r.Group)
		}
	}
	return nil
}
