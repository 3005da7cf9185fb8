package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/goddp/goddp/internal/telemetry"
)

// TestRun plays the scenarios under testdata/run. If one fails, run
//
//	go test ./internal/page -run TestRun -rewrite
//
// and read the diff; keep it only if you understand and want it.
//
// "values", "times" and "state-of" add records of a rank, one for each line: the step, and names with their numbers. "steps" adds a record with
// the same number for each step. "curves" prints the points, of each rank or together, and "state" what the page shows beside them.
func TestRun(t *testing.T) {
	datadriven.Walk(t, "testdata/run", func(t *testing.T, path string) {
		var r *Run
		now := time.Unix(1000, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number, steps := 0, 1
			argument(t, d, "rank", &number)
			argument(t, d, "steps", &steps)
			after := "0s"
			argument(t, d, "after", &after)
			took, err := time.ParseDuration(after)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			now = now.Add(took)
			switch d.Cmd {
			case "new":
				r = NewRun(Info{})
				r.now = func() time.Time { return now }
				argument(t, d, "points", &r.points)
			case "values", "times", "state-of":
				kind := map[string]telemetry.Kind{"values": telemetry.Values, "times": telemetry.Times, "state-of": telemetry.State}[d.Cmd]
				for line := range strings.Lines(d.Input) {
					fields := strings.Fields(line)
					rec := &telemetry.Record{Kind: kind, Step: whole(fields[0], -1), Steps: steps}
					for _, f := range fields[1:] {
						name, text, _ := strings.Cut(f, "=")
						v, err := strconv.ParseFloat(text, 64)
						if err != nil {
							d.Fatalf(t, "%v", err)
						}
						rec.Values = append(rec.Values, telemetry.Value{Name: name, Number: v})
					}
					add(r, number, rec)
				}
			case "steps":
				var from, to int64
				var loss string
				d.ScanArgs(t, "from", &from)
				d.ScanArgs(t, "to", &to)
				d.ScanArgs(t, "loss", &loss)
				v, _ := strconv.ParseFloat(loss, 64)
				for step := from; step <= to; step++ {
					add(r, number, &telemetry.Record{Kind: telemetry.Values, Step: step, Values: []telemetry.Value{{Name: "loss", Number: v}}})
				}
			case "many":
				var names, parts int
				d.ScanArgs(t, "names", &names)
				d.ScanArgs(t, "parts", &parts)
				for i := range names {
					add(r, 0, &telemetry.Record{Kind: telemetry.Values, Values: []telemetry.Value{{Name: fmt.Sprint("n", i), Number: 1}}})
				}
				for i := range parts {
					add(r, 0, &telemetry.Record{Kind: telemetry.Times, Values: []telemetry.Value{{Name: fmt.Sprint("p", i), Number: 1}}})
				}
			case "curves":
				return describeCurves(t, r, d)
			case "state":
				return describeState(r, d.HasArg("short"))
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return ""
		})
	})
}

// argument scans an argument of a command, if it is there.
func argument(t *testing.T, d *datadriven.TestData, name string, dst any) {
	if d.HasArg(name) {
		d.ScanArgs(t, name, dst)
	}
}

// add adds a record as a worker's datagram would.
func add(r *Run, number int, rec *telemetry.Record) {
	if k := r.rank(number); k != nil {
		r.record(number, k, rec)
	}
}

func describeCurves(t *testing.T, r *Run, d *datadriven.TestData) string {
	name, kind, from, bins := "", "values", int64(0), 100
	d.ScanArgs(t, "name", &name)
	argument(t, d, "kind", &kind)
	argument(t, d, "from", &from)
	argument(t, d, "bins", &bins)
	c := r.Curves(map[string]telemetry.Kind{"values": telemetry.Values, "times": telemetry.Times}[kind], name, from, -1, bins, !d.HasArg("together"))
	var b strings.Builder
	for i, step := range c.Steps {
		fmt.Fprintf(&b, "%d:", step)
		for _, rank := range c.Ranks {
			switch mean := float64(rank.Mean[i]); {
			case math.IsNaN(mean):
				b.WriteString(" null")
			case rank.Min[i] < rank.Max[i]:
				fmt.Fprintf(&b, " %.6g (%.6g to %.6g)", mean, float64(rank.Min[i]), float64(rank.Max[i]))
			default:
				fmt.Fprintf(&b, " %.6g", mean)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func describeState(r *Run, isShort bool) string {
	s := r.State()
	if isShort {
		return fmt.Sprintf("names %d, parts %d, refused %d\n", len(s.Names), len(s.Parts), s.Refused)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, step %d, names %s\n", s.Status, s.Step, strings.Join(s.Names, " "))
	for _, l := range s.Latest {
		fmt.Fprintf(&b, "%s %.6g at step %d\n", l.Name, float64(l.Value), l.Step)
	}
	for _, rank := range s.Ranks {
		fmt.Fprintf(&b, "rank %d: step %d", rank.Rank, rank.Step)
		for _, part := range slices.Sorted(maps.Keys(rank.Parts)) {
			fmt.Fprintf(&b, " %s %s", part, seconds(float64(rank.Parts[part])))
		}
		if g := rank.GPU; g != nil {
			fmt.Fprintf(&b, ", GPU %g MHz %g °C %g W", float64(g.Clock), float64(g.Temperature), float64(g.Power))
		}
		b.WriteByte('\n')
	}
	if s.Slow != nil {
		fmt.Fprintf(&b, "slow: %s\n", s.Slow.Text)
	}
	return b.String()
}

// BenchmarkCurves measures what a curve of 64 ranks costs golaunch for each reader and second, and a heat map.
func BenchmarkCurves(b *testing.B) {
	r := NewRun(Info{})
	for rank := range 64 {
		for step := range int64(mostPoints) {
			add(r, rank, &telemetry.Record{Kind: telemetry.Values, Step: step, Values: []telemetry.Value{{Name: "loss", Number: 1 / float64(step+1)}}})
		}
	}
	for _, isEach := range []bool{false, true} {
		b.Run(fmt.Sprintf("each=%v", isEach), func(b *testing.B) {
			var text bytes.Buffer
			for b.Loop() {
				text.Reset()
				writeJSON(&text, r.Curves(telemetry.Values, "loss", 0, -1, 400, isEach))
			}
			b.ReportMetric(float64(text.Len()), "bytes/answer")
		})
	}
}

// No list of the state is null, also before a program has reported anything: the page's script reads the length of each.
func TestStateHasNoNull(t *testing.T) {
	r := NewRun(Info{})
	r.Worker(Worker{State: Running})
	if text, err := json.Marshal(r.State()); err != nil || bytes.Contains(text, []byte("null")) {
		t.Errorf("%s, %v", text, err)
	}
}
