package flight

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/jobenv"
)

var epoch = time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func newRecorder(t testing.TB, entries int) *Recorder {
	t.Helper()
	r, err := New(nil, Identity{Rank: 1, WorldSize: 4, LocalRank: 1, Generation: 2, Job: "j", Run: "r"}, entries)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func allReduce(seq uint64) *backend.Call {
	x := device.Tensor{DType: device.Float32, Shape: device.Shape{100}}
	return &backend.Call{Seq: seq, Kind: backend.AllReduce, Op: backend.Max, Dst: x, Src: x, Name: "bucket 3", Timeout: time.Minute}
}

func TestRecord(t *testing.T) {
	r := newRecorder(t, 10)
	g := r.Group("default", 1, 4)
	done := g.Begin(allReduce(1), at(0).UnixNano())
	done.Running(at(1))
	done.Ended(at(2), false)
	failed := g.Begin(allReduce(2), at(3).UnixNano())
	failed.Ended(at(4), true)
	g.Begin(allReduce(3), at(5).UnixNano()).Running(at(6))
	send := &backend.Call{Seq: 7, Kind: backend.Send, Root: 3, Src: allReduce(0).Src}
	g.Begin(send, at(7).UnixNano())
	r.Reason("rank 2 lost", new(2), 2, 3)
	r.Reason("another", nil, 1)

	d := r.Dump()
	if d.Rank != 1 || d.WorldSize != 4 || d.Generation != 2 || d.Job != "j" || d.Run != "r" || d.Host == "" || d.PID == 0 || d.Started.IsZero() {
		t.Errorf("identity: %+v", d)
	}
	if d.Reason != "rank 2 lost" || d.CausedBy == nil || *d.CausedBy != 2 || !slices.Equal(d.Awaited, []int{2, 3}) || d.Recorded != 4 || !d.Closed.IsZero() {
		t.Errorf("reason %q, %d recorded, closed %v", d.Reason, d.Recorded, d.Closed)
	}
	if want := (Membership{Name: "default", Rank: 1, Size: 4, Enqueued: 3, Started: 3, Completed: 1}); len(d.Groups) != 1 || d.Groups[0] != want {
		t.Errorf("groups %+v, want %+v", d.Groups, want)
	}
	var got strings.Builder
	for _, rec := range d.Records {
		fmt.Fprintf(&got, "%d %s %v: %v, %d bytes, within %v, %v\n", rec.Number, rec.Group, rec, rec.State, rec.Bytes, rec.Timeout, times(rec))
	}
	want := `1 default AllReduce #1(max, float32, 100 elements) bucket 3: done, 400 bytes, within 1m0s, [0s 1s 2s]
2 default AllReduce #2(max, float32, 100 elements) bucket 3: failed, 400 bytes, within 1m0s, [3s - 4s]
3 default AllReduce #3(max, float32, 100 elements) bucket 3: running, 400 bytes, within 1m0s, [5s 6s -]
4 default Send #7(float32, 100 elements, to rank 3): queued, 400 bytes, within 0s, [7s - -]
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
	r.Close()
	if r.Dump().Closed.IsZero() {
		t.Error("the Close is not recorded")
	}
}

// times returns the times of a record, counted from the epoch.
func times(r Record) (s []string) {
	for _, at := range []time.Time{r.Queued, r.Running, r.Ended} {
		if at.IsZero() {
			s = append(s, "-")
		} else {
			s = append(s, at.Sub(epoch).String())
		}
	}
	return s
}

func TestRingGoesRound(t *testing.T) {
	r := newRecorder(t, 4)
	g := r.Group("default", 0, 1)
	first := g.Begin(allReduce(1), at(0).UnixNano())
	for seq := uint64(2); seq <= 6; seq++ {
		g.Begin(allReduce(seq), at(0).UnixNano())
	}
	// A later call has overwritten the first entry: updating it may only change the numbers of
	// the group.
	first.Running(at(1))
	first.Ended(at(2), true)
	d := r.Dump()
	if len(d.Records) != 4 || d.Recorded != 6 {
		t.Fatalf("%d records of %d, want 4 of 6", len(d.Records), d.Recorded)
	}
	for i, rec := range d.Records {
		if rec.Number != uint64(3+i) || rec.State.State != backend.Queued {
			t.Errorf("record %d: number %d, %v", i, rec.Number, rec.State)
		}
	}
	if g := d.Groups[0]; g.Enqueued != 6 || g.Started != 1 || g.Completed != 0 {
		t.Errorf("group %+v", g)
	}
}

func TestNil(t *testing.T) {
	var r *Recorder
	g := r.Group("default", 0, 1)
	e := g.Begin(allReduce(1), at(0).UnixNano())
	e.Running(at(1))
	e.Ended(at(2), false)
	r.Reason("why", nil)
	r.Close()
	if d := r.Dump(); g != nil || e != (Entry{}) || d != nil {
		t.Errorf("group %v, entry %v, dump %v", g, e, d)
	}
}

func TestTablesFull(t *testing.T) {
	r := newRecorder(t, 10)
	for i := range maxGroups + 2 {
		if g := r.Group(fmt.Sprint(i), 0, 1); (g == nil) != (i >= maxGroups) {
			t.Fatalf("group %d: %v", i, g)
		}
	}
	g := r.Group("one more", 0, 1)
	g.Begin(allReduce(1), at(0).UnixNano()).Ended(at(1), false)
	for i := range maxSites {
		r.known[stack{uintptr(i)}] = 1
	}
	r.mem.groups[0].size = 1
	(&Group{r: r, record: &r.mem.groups[0]}).Begin(allReduce(1), at(0).UnixNano())
	d := r.Dump()
	if d.LostGroups != 3 || d.LostSites != 1 || len(d.Records) != 1 || d.Frames(d.Records[0]) != nil {
		t.Errorf("%d groups and %d sites lost, records %+v", d.LostGroups, d.LostSites, d.Records)
	}
}

func TestLongNames(t *testing.T) {
	r := newRecorder(t, 1)
	g := r.Group(strings.Repeat("g", 200), 0, 1)
	c := allReduce(1)
	c.Name = strings.Repeat("é", 100)
	g.Begin(c, at(0).UnixNano())
	r.Reason(strings.Repeat("x", 5000), nil)
	d := r.Dump()
	if len(d.Groups[0].Name) != 112 || d.Records[0].Name != strings.Repeat("é", 24) || len(d.Reason) != 1024 {
		t.Errorf("names of %d and %d bytes, reason of %d", len(d.Groups[0].Name), len(d.Records[0].Name), len(d.Reason))
	}
	if d.Records[0].Group != d.Groups[0].Name {
		t.Error("the record does not name its group")
	}
}

// Goroutines may record concurrently, and no call is lost.
func TestConcurrent(t *testing.T) {
	const goroutines, calls = 8, 200
	r := newRecorder(t, 16)
	var wg sync.WaitGroup
	for i := range goroutines {
		g := r.Group(fmt.Sprint(i), 0, 1)
		wg.Go(func() {
			for seq := range uint64(calls) {
				e := g.Begin(allReduce(seq+1), at(0).UnixNano())
				e.Running(at(1))
				r.Dump()
				e.Ended(at(2), false)
			}
		})
	}
	wg.Wait()
	d := r.Dump()
	for _, g := range d.Groups {
		if g.Completed != calls {
			t.Errorf("group %s: %d completed, want %d", g.Name, g.Completed, calls)
		}
	}
	if d.Recorded != goroutines*calls || len(d.Records) != 16 {
		t.Errorf("%d recorded, %d kept", d.Recorded, len(d.Records))
	}
}

func TestMemory(t *testing.T) {
	if _, err := New(nil, Identity{}, 0); err == nil {
		t.Error("a ring of nothing was accepted")
	}
	if _, err := New(heap(Size(1)-8), Identity{}, 1); err == nil {
		t.Error("too little memory was accepted")
	}
	mem := heap(Size(3) + 8)
	if _, err := New(mem[1:], Identity{}, 1); err == nil {
		t.Error("memory that is not aligned was accepted")
	}
	r, err := New(mem, Identity{WorldSize: 1}, 100)
	if err != nil {
		t.Fatal(err)
	}
	r.Group("default", 0, 1).Begin(allReduce(1), at(0).UnixNano())
	if d := r.Dump(); d.Capacity != 3 {
		t.Errorf("capacity %d in memory for 3", d.Capacity)
	}
	if _, err := New(mem, Identity{WorldSize: 1}, 1); !errors.Is(err, ErrInUse) {
		t.Errorf("a second recorder of the same memory: %v, want %v", err, ErrInUse)
	}
	r.Close()
	if r, err = New(mem, Identity{WorldSize: 1}, 2); err != nil {
		t.Fatal(err)
	}
	if d := r.Dump(); len(d.Records) != 0 || len(d.Groups) != 0 || d.Capacity != 2 {
		t.Errorf("the new record begins with %+v", d)
	}
}

// TestLayout pins the layout of version 3. A change of the layout needs a new version.
func TestLayout(t *testing.T) {
	for _, p := range []struct {
		what      string
		got, want uintptr
	}{
		{"header", unsafe.Sizeof(header{}), 1592},
		{"header.closed", unsafe.Offsetof(header{}.closed), 240},
		{"group", unsafe.Sizeof(groupRecord{}), 144},
		{"site", unsafe.Sizeof(siteRecord{}), 1024},
		{"slot", unsafe.Sizeof(slot{}), 128},
		{"slot.kind", unsafe.Offsetof(slot{}.kind), 72},
		{"slot.name", unsafe.Offsetof(slot{}.name), 80},
	} {
		if p.got != p.want {
			t.Errorf("%s: %d, want %d", p.what, p.got, p.want)
		}
	}
	if got, want := Size(jobenv.DefaultEntries), 1592+256*144+256*1024+2000*128; got != want {
		t.Errorf("default size %d, want %d", got, want)
	}
}

func TestNoAllocation(t *testing.T) {
	g := newRecorder(t, 100).Group("default", 0, 1)
	c, now := allReduce(1), time.Now()
	if n := testing.AllocsPerRun(1000, func() {
		e := g.Begin(c, now.UnixNano())
		e.Running(now)
		e.Ended(now, false)
	}); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
}
