package flight

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// recorded returns the memory of a recorder that has recorded some calls.
func recorded(t testing.TB) []byte {
	mem := heap(Size(4))
	r, err := New(mem, Identity{Rank: 1, WorldSize: 4}, 4)
	if err != nil {
		t.Fatal(err)
	}
	g := r.Group("default", 1, 4)
	for seq := range uint64(5) {
		g.Begin(allReduce(seq+1), at(0).UnixNano()).Running(at(1))
	}
	r.Reason("why", nil)
	return mem
}

func aligned(mem []byte) []byte {
	a := heap(len(mem))
	copy(a, mem)
	return a
}

func TestRead(t *testing.T) {
	mem := recorded(t)
	d, err := Read(mem)
	if err != nil || len(d.Records) != 4 || d.Records[3].Call.Seq != 5 || d.Reason != "why" {
		t.Fatalf("got %+v, %v", d, err)
	}
	slots := Size(0)
	for name, test := range map[string]struct {
		change func(mem []byte) []byte
		want   string // part of the error; "" if Read succeeds and omits one record
	}{
		"empty":           {func(m []byte) []byte { clear(m); return m }, ErrEmpty.Error()},
		"short":           {func(m []byte) []byte { return m[:100] }, "at least"},
		"cut off":         {func(m []byte) []byte { return m[:len(m)-8] }, "4 entries"},
		"something else":  {func(m []byte) []byte { m[0]++; return m }, "begins with"},
		"version":         {func(m []byte) []byte { m[8]++; return m }, "version 3"},
		"no ring":         {func(m []byte) []byte { clear(m[12:16]); return m }, "ring has 0"},
		"rank":            {func(m []byte) []byte { m[16] = 4; return m }, "rank 4 of 4"},
		"group":           {func(m []byte) []byte { m[unsafe.Sizeof(header{})+112] = 9; return m }, "with rank 9"},
		"half written":    {func(m []byte) []byte { clear(m[slots : slots+8]); return m }, ""},
		"torn":            {func(m []byte) []byte { m[slots+100]++; return m }, ""},
		"another's place": {func(m []byte) []byte { copy(m[slots:], m[slots+128:slots+256]); return m }, ""},
	} {
		d, err := Read(test.change(aligned(mem)))
		switch {
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		case test.want == "" && (err != nil || len(d.Records) != 3):
			t.Errorf("%s: %+v, %v; want 3 records", name, d, err)
		}
	}
	if _, err := Read(make([]byte, Size(1))); !errors.Is(err, ErrEmpty) {
		t.Errorf("zeros: %v, want %v", err, ErrEmpty)
	}
}

// FuzzRead changes a recorder's memory at arbitrary places. If sealed is set, it also makes the
// checks of the entries right, as an attacker would. Every dump that Read returns must survive
// encoding and decoding.
func FuzzRead(f *testing.F) {
	f.Add([]byte{0}, uint(0), uint(0), false)
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255}, uint(12), uint(200), false)
	f.Add([]byte{255, 255, 255, 255}, uint(20), uint(0), false)              // the size of the job
	f.Add([]byte{255, 255, 255, 255}, uint(12), uint(0), false)              // the ring
	f.Add([]byte{255, 255, 255, 127}, uint(Size(0)+24+24), uint(0), true)    // the count of elements
	f.Add([]byte{9, 9, 9}, uint(Size(0)+24+48), uint(0), true)               // kind, reduction and type
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 128}, uint(Size(0)+24), uint(0), true) // the number
	good := recorded(f)
	f.Fuzz(func(t *testing.T, patch []byte, where, cut uint, seal bool) {
		mem := aligned(good)
		copy(mem[where%uint(len(mem)):], patch)
		if l, err := overlay(mem); seal && err == nil {
			for i := range l.slots {
				l.slots[i].check = l.slots[i].sum()
			}
		}
		d, err := Read(mem[:len(mem)-int(cut%uint(len(mem)))])
		if err != nil {
			return
		}
		if !slices.IsSortedFunc(d.Records, func(a, b Record) int { return cmp.Compare(a.Number, b.Number) }) {
			t.Error("records are not in order")
		}
		for _, r := range d.Records {
			_, _ = r.String(), d.Frames(r)
		}
		roundTrip(t, d)
	})
}

// roundTrip fails the test unless encoding d and decoding it returns d.
func roundTrip(t *testing.T, d *Dump) {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatalf("what was read cannot be written: %v", err)
	}
	again, err := Decode(text)
	if err != nil {
		t.Fatalf("what was written cannot be read: %v\n%s", err, text)
	}
	if second, err := json.Marshal(again); err != nil || !bytes.Equal(text, second) {
		t.Errorf("written, read and written: %v\n%s\n%s", err, text, second)
	}
}

// FuzzDecode decodes arbitrary dumps. Decode must not panic, and must take memory in proportion
// to its input.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"version": 3, "rank": 1, "world_size": 2000000000}`,
		`{"version": 3, "rank": 7, "world_size": 2, "capacity": 2000000000}`,
		`{"version": 3, "world_size": 2, "awaited": [0, 1, 2000000000]}`,
		`{"version": 3, "world_size": 2, "awaited": [` + strings.Repeat("0,", 1000) + `0]}`,
		`{"version": 3, "world_size": 2, "records": [` + strings.Repeat("{},", 1000) + `{}]}`,
		`{"version": 3, "world_size": 2, "records": [` + strings.Repeat("null,", 1000) + `null]}`,
		`{"version": 3, "world_size": 2, "groups": [` + strings.Repeat("{},", 1000) + `{}]}`,
		`{"version": 3, "world_size": 2, "sites": [` + strings.Repeat("[],", 1000) + `[]]}`,
		`{"version": 3, "world_size": 2, "sites": [[` + strings.Repeat("{},", 1000) + `{}]]}`,
		`{"version": 3, "world_size": 2, "groups": [{"name": "g", "size": 2}], "sites": [[{"func": "f", "file": "a.go", "line": 1}]],
		  "records": [{"number": 1, "group": "g", "call": {"seq": 1, "kind": "AllReduce", "op": "sum", "dtype": "float32", "count": -1}, "state": "queued", "site": 9}]}`,
		strings.Repeat("[", 20000), "null", `"dump"`,
	} {
		f.Add([]byte(text))
	}
	mem, err := Read(recorded(f))
	if err != nil {
		f.Fatal(err)
	}
	text, err := json.MarshalIndent(mem, "", " ")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := Decode(text)
		runtime.ReadMemStats(&after)
		if taken, most := after.TotalAlloc-before.TotalAlloc, uint64(64<<10+40*len(text)); taken > most {
			t.Errorf("%d bytes taken for a text of %d, want at most %d", taken, len(text), most)
		}
		if err == nil {
			roundTrip(t, d)
		}
	})
}
