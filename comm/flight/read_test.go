package flight

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// recorded is the memory of a recorder with some calls in it.
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
	r.Reason("why")
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
		want   string // of the error; "" for a record less than there were
	}{
		"empty":           {func(m []byte) []byte { clear(m); return m }, ErrEmpty.Error()},
		"short":           {func(m []byte) []byte { return m[:100] }, "at least"},
		"cut off":         {func(m []byte) []byte { return m[:len(m)-8] }, "4 entries"},
		"something else":  {func(m []byte) []byte { m[0]++; return m }, "begins with"},
		"version":         {func(m []byte) []byte { m[8]++; return m }, "version 2"},
		"no ring":         {func(m []byte) []byte { clear(m[12:16]); return m }, "ring of 0"},
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

// FuzzRead changes a record's memory at will.
func FuzzRead(f *testing.F) {
	f.Add([]byte{0}, uint(0), uint(0))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255}, uint(12), uint(200))
	good := recorded(f)
	f.Fuzz(func(t *testing.T, patch []byte, where, cut uint) {
		mem := aligned(good)
		copy(mem[where%uint(len(mem)):], patch)
		d, err := Read(mem[:len(mem)-int(cut%uint(len(mem)))])
		if err != nil {
			return
		}
		if _, err := d.Write(t.TempDir()); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
		if !slices.IsSortedFunc(d.Records, func(a, b Record) int { return int(a.Number) - int(b.Number) }) {
			t.Error("records are not in order")
		}
		for _, r := range d.Records {
			_, _ = r.String(), d.Frames(r)
		}
	})
}
