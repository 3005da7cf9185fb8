package analyze

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
)

// TestScenarios runs the scenarios in testdata. If one fails, run
//
//	go test ./internal/flight/analyze -run TestScenarios -rewrite
//
// and inspect the diff. Commit it only if the change is intended.
//
// The input of "analyze" is the records, taken 100 s after the clock's zero:
//
//	rank 0,1 of 4 [fate="was killed by SIGKILL@9"] [closed=9] [aborted=9] [reason="words@9"] [causedby=1] [awaited=2,3] [deadline=passed] [taken=50] [job=b] [attempt=1]
//	group default 4 [as=2]
//	AllReduce 5 done [queued=3 running=4 ended=6] [count=100] [type=float32] [op=sum] [root=0] [name=bucket] [at=train.go:7]
//
// A line applies to the ranks and the group that were named last before it. A rank's number in a
// group is its number in the job, unless "as" gives it. By default a call in the state running was
// queued, and started to run, at second 3. A call that is done or failed ended at second 6.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "analyze" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			var s scenario
			for line := range strings.Lines(d.Input) {
				if err := s.line(strings.TrimSpace(line)); err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
			}
			report := Analyze(s.dumps)
			checkReport(t, report)
			return report.String()
		})
	})
}

// checkReport checks properties of every report.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	for _, f := range r.Findings {
		if !slices.Contains(order, f.Kind) || f.Summary == "" || len(f.Ranks) == 0 || !slices.IsSorted(f.Ranks) {
			t.Errorf("finding %+v", f)
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back := &Report{}
	if err := json.Unmarshal(data, back); err != nil || back.String() != r.String() {
		t.Errorf("as JSON the report is %s, %v", data, err)
	}
}

// scenario is the records that the lines read so far describe.
type scenario struct {
	dumps   []*flight.Dump
	current []*flight.Dump // the records that the next lines apply to
	group   string
}

func second(text string) (time.Time, error) {
	s, err := strconv.ParseFloat(text, 64)
	return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second))), err
}

// argument matches one argument of a line: a bare word, name=value, or name="several words".
var argument = regexp.MustCompile(`(\w+)=(?:"([^"]*)"|(\S+))|(\S+)`)

func (s *scenario) line(line string) error {
	var plain []string
	args := map[string]string{}
	for _, m := range argument.FindAllStringSubmatch(line, -1) {
		if m[4] != "" {
			plain = append(plain, m[4])
		} else {
			args[m[1]] = m[2] + m[3]
		}
	}
	switch {
	case len(plain) == 4 && plain[0] == "rank":
		return s.rank(plain[1], plain[3], args)
	case len(plain) == 3 && plain[0] == "group":
		return s.member(plain[1], plain[2], args)
	case len(plain) == 3:
		return s.call(plain[0], plain[1], plain[2], args)
	}
	return fmt.Errorf("words %q", plain)
}

func (s *scenario) rank(ranks, size string, args map[string]string) error {
	s.current = nil
	for text := range strings.SplitSeq(ranks, ",") {
		rank, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		d := &flight.Dump{Version: 1, Rank: rank, Host: "node0", PID: 1000 + rank, Job: args["job"]}
		if d.WorldSize, err = strconv.Atoi(size); err != nil {
			return err
		}
		at := func(name, fallback string) (text string, when time.Time) {
			text, seconds, found := strings.Cut(args[name], "@")
			if !found {
				text, seconds = "", args[name]
			}
			if seconds == "" {
				seconds = fallback
			}
			when, _ = second(seconds)
			return text, when
		}
		_, d.Taken = at("taken", "100")
		d.DeadlinePassed = args["deadline"] == "passed"
		if args["closed"] != "" {
			_, d.Closed = at("closed", "")
		}
		if args["aborted"] != "" {
			_, d.Aborted = at("aborted", "")
		}
		for text := range strings.FieldsFuncSeq(args["awaited"], func(c rune) bool { return c == ',' }) {
			r, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			d.Awaited = append(d.Awaited, r)
		}
		if args["fate"] != "" {
			if d.Fate, d.FateAt = at("fate", ""); d.Fate == "" {
				d.Fate, d.FateAt = args["fate"], time.Time{}
			}
			d.Ending = cmp.Or(map[string]flight.Ending{"is": flight.Suspended, "has": flight.Replaced}[strings.Fields(d.Fate)[0]], flight.Died)
			if d.Fate == "exited with code 0" {
				d.Ending = flight.Succeeded
			}
		}
		if args["reason"] != "" {
			d.Reason, d.ReasonAt = at("reason", "")
			if cause, err := strconv.Atoi(args["causedby"]); err == nil {
				d.CausedBy = &cause
			}
		}
		if args["attempt"] != "" {
			if d.Generation, err = strconv.Atoi(args["attempt"]); err != nil {
				return err
			}
		}
		s.dumps, s.current = append(s.dumps, d), append(s.current, d)
	}
	return nil
}

func (s *scenario) member(name, size string, args map[string]string) error {
	s.group = name
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	for _, d := range s.current {
		m := flight.Membership{Name: name, Rank: d.Rank, Size: n}
		if as, ok := args["as"]; ok {
			if m.Rank, err = strconv.Atoi(as); err != nil {
				return err
			}
		}
		if seq, ok := args["enqueued"]; ok { // later calls that the ring has overwritten
			if m.Enqueued, err = strconv.ParseUint(seq, 10, 64); err != nil {
				return err
			}
			m.Started, m.Completed = m.Enqueued, m.Enqueued
		}
		d.Groups = append(d.Groups, m)
	}
	return nil
}

func (s *scenario) call(kind, seq, state string, args map[string]string) error {
	get := func(name, fallback string) string {
		if v, ok := args[name]; ok {
			return v
		}
		return fallback
	}
	number := func(name, fallback string) int {
		n, err := strconv.Atoi(get(name, fallback))
		if err != nil {
			panic(err)
		}
		return n
	}
	call := fmt.Sprintf(`{"seq": %s, "kind": %q, "count": %d, "dtype": %q, "op": %q, "root": %d}`,
		seq, kind, number("count", "100"), get("type", "float32"), get("op", "sum"), number("root", "0"))
	for _, d := range s.current {
		r := flight.Record{Number: uint64(len(d.Records) + 1), Group: s.group, Name: args["name"]}
		if err := r.Call.UnmarshalJSON([]byte(call)); err != nil {
			return err
		}
		if r.Call.Kind == backend.Barrier {
			r.Call.Count, r.Call.DType = 0, device.Invalid
		}
		if !r.Call.Kind.Reduces() {
			r.Call.Op = 0
		}
		if !r.Call.Kind.Rooted() {
			r.Call.Root = 0
		}
		if err := r.State.UnmarshalText([]byte(state)); err != nil {
			return err
		}
		r.Queued, _ = second(get("queued", "3"))
		if state != "queued" && get("running", "3") != "never" {
			r.Running, _ = second(get("running", "3"))
		}
		if state == "done" || state == "failed" {
			r.Ended, _ = second(get("ended", "6"))
		}
		if at, ok := args["at"]; ok {
			file, line, _ := strings.Cut(at, ":")
			n, err := strconv.Atoi(line)
			if err != nil {
				return err
			}
			d.Sites = append(d.Sites, []flight.Frame{
				{Func: "github.com/goddp/goddp/ddp/reducer.launch", File: "launch.go", Line: 1}, {Func: "main.step", File: file, Line: n},
			})
			r.Site = len(d.Sites)
		}
		m := &d.Groups[slices.IndexFunc(d.Groups, func(m flight.Membership) bool { return m.Name == s.group })]
		if r.Call.Kind != backend.Send && r.Call.Kind != backend.Recv {
			m.Enqueued = max(m.Enqueued, r.Call.Seq)
			if !r.Running.IsZero() {
				m.Started = max(m.Started, r.Call.Seq)
			}
			if state == "done" {
				m.Completed = max(m.Completed, r.Call.Seq)
			}
		}
		d.Records = append(d.Records, r)
	}
	return nil
}

func TestNothing(t *testing.T) {
	if r := Analyze(nil); len(r.Findings) != 0 || !strings.Contains(r.String(), "no records") {
		t.Errorf("got %s", r)
	}
}

// FuzzAnalyze analyzes arbitrary dumps. Analyze must not panic.
func FuzzAnalyze(f *testing.F) {
	f.Add([]byte(`{"version": 3, "rank": 1, "world_size": 2, "taken": "2030-01-01T00:01:00Z", "ending": "suspended",
		"groups": [{"name": "default", "rank": 1, "size": 2, "enqueued": 5}],
		"records": [{"number": 1, "group": "default", "state": "failed", "call": {"kind": "Recv", "seq": 2, "root": 9, "dtype": "int32"}}]}`),
		[]byte(`{"version": 3, "world_size": 2, "taken": "2030-01-01T00:01:00Z", "reason": "why",
		"groups": [{"name": "default", "size": 2, "enqueued": 7}, {"name": "other", "size": 1}],
		"records": [{"number": 7, "group": "default", "state": "running", "queued": "2030-01-01T00:00:00Z", "call": {"kind": "AllReduce", "seq": 7}}]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		dir := t.TempDir()
		for i, data := range [][]byte{a, b} {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank_%d.json", i)), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if dumps, _ := flight.ReadDir(dir); len(dumps) > 0 && dumps[0].WorldSize < 1000 {
			checkReport(t, Analyze(dumps))
		}
	})
}
