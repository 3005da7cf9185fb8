package profile

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_700_000_000, 0)

func at(ms int) At { return At(epoch.Add(time.Duration(ms) * time.Millisecond)) }

// pending is a Moment that lies in the future.
type pending struct{}

func (pending) Time() time.Time { return time.Time{} }

func step(r *Recorder) {
	r.Add(Span{Track: Compute, Name: "forward", Begin: at(0), End: at(10)})
	r.Add(Span{Track: Compute, Name: "backward", Begin: at(10), End: at(30)})
	r.Add(Span{Track: Communication, Name: "bucket 0", Begin: at(15), End: at(25), Args: []Arg{{"bucket", 0}, {"bytes", 1 << 20}}})
	r.Add(Span{Track: Communication, Name: "bucket 1", Begin: at(28), End: at(38), Args: []Arg{{"bucket", 1}, {"bytes", 3 << 20}}})
	r.Add(Span{Track: Compute, Name: "optimizer", Begin: at(38), End: at(40)})
	r.Add(Span{Track: "mine", Name: "own", Begin: at(1), End: at(2)})
	r.Add(Span{Track: Compute, Name: "next", Begin: at(40), End: pending{}})
}

func TestOverlapCountsWhatComputationCovers(t *testing.T) {
	var r Recorder
	r.Start()
	step(&r)
	got := r.Overlap()
	want := Overlap{Reductions: 2, Bytes: 4 << 20, Comm: 20 * time.Millisecond, Hidden: 12 * time.Millisecond}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if s, want := got.String(), "2 reductions, 4.0 MiB, 20ms of communication, 60% hidden behind computation, 8ms exposed"; s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

// Reductions that overlap count once, and so do computations within others. What only waits hides nothing.
func TestOverlapOfSpansWithinSpans(t *testing.T) {
	var r Recorder
	r.Start()
	r.Add(Span{Track: Compute, Begin: at(0), End: at(100)})
	r.Add(Span{Track: Compute, Begin: at(10), End: at(20)})
	r.Add(Span{Track: Communication, Begin: at(50), End: at(90)})
	r.Add(Span{Track: Communication, Begin: at(60), End: at(70)})
	r.Add(Span{Track: Communication, Begin: at(200), End: at(300)}) // no computation runs at the same time
	if got, want := r.Overlap(), (Overlap{Reductions: 3, Comm: 140 * time.Millisecond, Hidden: 40 * time.Millisecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r.Add(Span{Track: Compute, Begin: at(55), End: at(65), Waits: true})
	r.Add(Span{Track: Compute, Begin: at(85), End: at(95), Waits: true})
	r.Add(Span{Track: Compute, Begin: at(50), End: at(60), Waits: true})
	r.Add(Span{Track: Host, Begin: at(70), End: at(80), Waits: true})      // on a track that is not the compute stream's
	r.Add(Span{Track: Compute, Begin: at(250), End: at(260), Waits: true}) // the compute stream waits, so no computation is hidden
	if got, want := r.Overlap(), (Overlap{Reductions: 3, Comm: 140 * time.Millisecond, Hidden: 20 * time.Millisecond}); got != want {
		t.Errorf("with waits got %+v, want %+v", got, want)
	}
	if p := (Overlap{}).Percent(); p != 100 {
		t.Errorf("%v%% of nothing is hidden, want 100", p)
	}
}

// clock is a Moment that comes when the test says so. After the Recorder has read the time once,
// another read fails the test, because the event may have been freed.
type clock struct {
	t     *testing.T
	at    time.Time
	asked bool
}

func (c *clock) Time() time.Time {
	if c.asked {
		c.t.Error("a moment that had come was kept")
	}
	c.asked = !c.at.IsZero()
	return c.at
}

func TestMomentsAreReleased(t *testing.T) {
	var r Recorder
	r.Add(Span{Track: Compute, Begin: at(0), End: at(1)})
	if n := len(r.Spans()); n != 0 {
		t.Errorf("%d spans before Start", n)
	}
	r.Start()
	end := &clock{t: t}
	r.Add(Span{Track: Compute, Begin: at(0), End: end})
	end.at = epoch
	for range 3 {
		r.Add(Span{Track: "a program's own", Begin: at(0), End: at(1)})
	}
	if n := len(r.Spans()); n != 4 {
		t.Errorf("%d spans, want 4", n)
	}
	r.Stop()
	r.Add(Span{Track: Compute, Begin: at(0), End: at(1)})
	if n := len(r.Spans()); n != 4 {
		t.Errorf("%d spans after Stop, want 4", n)
	}
}

func TestChromeTrace(t *testing.T) {
	var r Recorder
	r.Start()
	step(&r)
	r.Add(Span{Track: Compute, Name: "wait", Begin: at(50), End: at(51), Waits: true})
	r.Add(Span{Track: Compute, Name: "of which it is a part", Begin: at(50), End: at(52)})
	var buf bytes.Buffer
	if err := r.WriteChrome(&buf, 3); err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph string
			PID, TID int
			TS, Dur  float64
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(buf.Bytes(), &trace); err != nil {
		t.Fatalf("%v in %s", err, buf.String())
	}
	threads := map[int]string{}
	spans := map[string]int{}
	for i, e := range trace.TraceEvents {
		if e.PID != 3 {
			t.Errorf("%s: process %d, want the rank, 3", e.Name, e.PID)
		}
		switch {
		case e.Name == "thread_name":
			threads[e.TID] = e.Args["name"].(string)
		case e.Ph == "X":
			spans[e.Name] = i
		}
	}
	if len(spans) != 8 {
		t.Errorf("got %d spans, want the 8 that have ended", len(spans))
	}
	if spans["wait"] < spans["of which it is a part"] {
		t.Error("a part comes before the whole: a viewer does not draw it within")
	}
	if span := trace.TraceEvents[spans["own"]]; threads[span.TID] != "mine" {
		t.Errorf("a track of the program's own is called %q", threads[span.TID])
	}
	b := trace.TraceEvents[spans["bucket 1"]]
	if threads[b.TID] != "communication" || b.Dur != 10_000 || b.Args["bytes"] != 3.0*(1<<20) || b.Args["bucket"] != 1.0 {
		t.Errorf("bucket 1 is %+v on track %q", b, threads[b.TID])
	}
	if want := float64(epoch.UnixMicro()) + 28_000; b.TS != want {
		t.Errorf("bucket 1 starts at %f, want %f", b.TS, want)
	}
}

func TestWriteFileLeavesNothingOnFailure(t *testing.T) {
	dir := t.TempDir()
	var r Recorder
	r.Start()
	r.Add(Span{Track: Compute, Name: "bad", Begin: at(0), End: at(1), Args: []Arg{{"f", func() {}}}})
	if err := r.WriteFile(filepath.Join(dir, "t.json"), 0); err == nil || !strings.Contains(err.Error(), "t.json") {
		t.Errorf("got %v, want an error that names the file", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v was left", left)
	}
}
