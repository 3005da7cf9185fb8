package progress

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
)

// Each rank reports how long the parts of a step took. The time for which the host waited is a part by itself. What was
// logged goes to the page too; from ranks other than 0 only what the process holds.
func TestPage(t *testing.T) {
	for rank, want := range []string{
		"t 1: wait=0.5 data=0.5 backward=2 other=1\nv 1: loss=2 samples_per_second=1 heap_bytes goroutines\n",
		"t 1: wait=0.5 data=0.5 backward=2 other=1\nv 1: heap_bytes goroutines\n",
	} {
		var datagrams strings.Builder
		send := func(b []byte) error {
			_, err := telemetry.Decode(b, func(r *telemetry.Record) {
				fmt.Fprintf(&datagrams, "%c %d:", r.Kind, r.Step)
				for _, v := range r.Values {
					if fmt.Fprint(&datagrams, " ", v.Name); v.Name != "heap_bytes" && v.Name != "goroutines" {
						fmt.Fprintf(&datagrams, "=%.3g", v.Number)
					}
				}
				fmt.Fprintln(&datagrams)
			})
			return err
		}
		now, waited := time.Unix(0, 0), time.Duration(0)
		m, err := New(rank, &Options{Every: 1, Out: io.Discard, Waited: func() time.Duration { return waited }, now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		m.page = telemetry.NewReporter(send, func() time.Time { return now })
		now, waited = now.Add(time.Second), waited+500*time.Millisecond
		m.Lap("data")
		now = now.Add(2 * time.Second)
		m.Lap("backward")
		now = now.Add(time.Second)
		m.Step(4)
		m.Log(V("loss", 2))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if got := datagrams.String(); got != want {
			t.Errorf("rank %d: got\n%swant\n%s", rank, got, want)
		}
	}
}

// What is counted has a rate in each line, and operations also the part of the peak that they are.
func TestCounts(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	m, err := New(0, &Options{Every: 1, Out: &out, PeakFLOPS: func() float64 { return 8e12 }, now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		now = now.Add(2 * time.Second)
		m.Count("tokens", 1000)
		m.Count("tokens", 1000)
		m.Count("flops", 4e12)
		m.Step(10)
		m.Log()
	}
	want := "step 1  5 samples/s  1000 tokens/s  mfu 0.25\nstep 2  5 samples/s  1000 tokens/s  mfu 0.25\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// BenchmarkStep measures what the page costs a step of a loop with five parts.
func BenchmarkStep(b *testing.B) {
	m, err := New(0, &Options{Out: io.Discard, Waited: func() time.Duration { return 0 }})
	if err != nil {
		b.Fatal(err)
	}
	m.page = telemetry.NewReporter(func([]byte) error { return nil }, time.Now)
	for b.Loop() {
		for _, part := range []string{"data", "forward", "backward", "optimizer"} {
			m.Lap(part)
		}
		m.Step(1)
	}
}
