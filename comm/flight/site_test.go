package flight

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// walk calls itself depth times, through different kinds of frames, and then
// f. Some of them are inlined.
func walk(depth int, f func()) {
	switch {
	case depth == 0:
		f()
	case depth%2 == 0:
		func() { walk(depth-1, f) }()
	default:
		var w walker = &deep{}
		w.walk(depth-1, f)
	}
}

type walker interface{ walk(int, func()) }

type shallow struct{}

func (shallow) walk(depth int, f func()) { walk(depth, f) }

// deep has its method by way of a wrapper that the compiler makes.
type deep struct{ shallow }

func functions(pcs []uintptr) (names []string) {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if !hidden(f) {
			names = append(names, f.Function)
		}
		if !more {
			return names
		}
	}
}

// TestCallers compares the walk along frame pointers with the runtime's own.
func TestCallers(t *testing.T) {
	for depth := range 12 {
		var got, want []string
		done := make(chan struct{})
		go walk(depth, func() {
			defer close(done)
			var pcs [maxFrames]uintptr
			got = functions(pcs[:callers(&pcs)])
			want = functions(pcs[:runtime.Callers(2, pcs[:])])
		})
		<-done
		// The runtime counts inlined frames as well: where there are too many
		// frames the walk sees further.
		got = got[:min(len(got), len(want))]
		if len(got) < min(depth, maxFrames/2) || !slices.Equal(got, want) {
			t.Errorf("depth %d:\n got %q\nwant %q", depth, got, want)
		}
	}
}

// TestCallersOnMovedStacks walks while stacks grow and are copied.
func TestCallersOnMovedStacks(t *testing.T) {
	done := make(chan int)
	for range 50 {
		go func() {
			n := 0
			walk(300, func() {
				var pcs [maxFrames]uintptr
				n = callers(&pcs)
				runtime.GC() // shrinks stacks
				n += callers(&pcs)
			})
			done <- n
		}()
	}
	for range 50 {
		if n := <-done; n != 2*maxFrames {
			t.Errorf("%d frames, want %d", n, 2*maxFrames)
		}
	}
}

//go:noinline
func twoFromHere(g *Group) {
	g.Begin(allReduce(1), at(0))
	g.Begin(allReduce(2), at(0))
}

func TestFrames(t *testing.T) {
	r := newRecorder(t, 10)
	g := r.Group("default", 0, 1)
	twoFromHere(g)
	twoFromHere(g)
	d := r.Dump()
	// Two places in twoFromHere, from each of two places here.
	if len(d.Sites) != 4 {
		t.Fatalf("%d call sites, want 4", len(d.Sites))
	}
	a, b := d.Frames(d.Records[0]), d.Frames(d.Records[1])
	if len(a) < 3 || len(b) < 3 {
		t.Fatalf("frames %v and %v", a, b)
	}
	const pkg = "github.com/goddp/goddp/comm/flight."
	for i, want := range []string{pkg + "twoFromHere", pkg + "TestFrames", "testing.tRunner"} {
		if a[i].Func != want || a[i].Line == 0 || !strings.HasSuffix(a[i].File, ".go") {
			t.Errorf("frame %d is %+v, want %s", i, a[i], want)
		}
	}
	if b[0].Line != a[0].Line+1 || b[1] != a[1] {
		t.Errorf("the second call comes from %v, the first from %v", b, a)
	}
}

func TestParseFrames(t *testing.T) {
	text := "a.go\t7\tmain.f\nbroken\nb.go\tx\tmain.g\n\t1\tmain.h\n"
	want := []Frame{{"main.f", "a.go", 7}, {"main.h", "", 1}}
	if got := parseFrames(text); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
