package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/flight/analyze"
)

func TestRootCause(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	wrote := func(ms int) *ErrorFile { return &ErrorFile{Message: "error", Time: at(ms)} }
	blamed := func(ms, rank int) *ErrorFile {
		return &ErrorFile{Message: "rank lost", Time: at(ms), CausedBy: &rank}
	}
	type end struct {
		Failure
		late bool
	}
	exit := func(rank, ms int, s Status, ef *ErrorFile, late bool) end {
		return end{Failure{Worker: Worker{Rank: rank, PID: 1 + rank}, Status: s, Exited: at(ms), ErrorFile: ef,
			Stopped: late && stoppedBy(s, syscall.SIGTERM, false)}, late}
	}
	one, term, kill := Status{Code: 1}, Status{Signal: syscall.SIGTERM}, Status{Signal: syscall.SIGKILL}
	caught := Status{Code: 128 + int(syscall.SIGTERM)}
	abort := Status{Signal: syscall.SIGABRT}
	for _, test := range []struct {
		name    string
		ends    []end // in the order observed
		root    int
		stopped int
	}{
		{"the only one", []end{exit(3, 2000, one, nil, false)}, 3, 0},
		{"order decides between equals", []end{exit(1, 2000, one, nil, false), exit(0, 2000, one, nil, false)}, 1, 0},
		{"an echo's error file is older than the cause's observed exit",
			[]end{exit(2, 2005, one, nil, false), exit(0, 2006, one, wrote(2001), true)}, 2, 0},
		{"the cause exits slowly, its echo is seen first",
			[]end{exit(0, 2050, one, wrote(2040), true), exit(2, 2300, one, wrote(2000), true)}, 2, 0},
		{"a crash outranks what others wrote up to a second before it was seen",
			[]end{exit(2, 2900, kill, nil, false), exit(0, 2901, one, wrote(2100), true)}, 2, 0},
		{"but not what was written long before",
			[]end{exit(2, 3900, kill, nil, false), exit(0, 3901, one, wrote(2100), true)}, 0, 0},
		{"a watchdog's abort is no crash",
			[]end{exit(1, 2900, abort, nil, false), exit(0, 2901, one, wrote(2100), true)}, 0, 0},
		{"stopped while tearing down after its error",
			[]end{exit(0, 2050, one, wrote(2040), false), exit(2, 2060, term, wrote(2000), true)}, 2, 0},
		{"an error file that the stop caused", // interrupted, it complains
			[]end{exit(0, 2050, one, nil, false), exit(2, 2060, term, wrote(2055), true)}, 0, 1},
		{"told to stop after it closed its connections, before it wrote its error file",
			[]end{exit(0, 2050, one, blamed(2040, 2), false), exit(1, 2055, caught, blamed(2052, 2), true), exit(2, 2060, caught, wrote(2055), true)}, 2, 1},
		{"blamed, but it blames another too",
			[]end{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, caught, blamed(2055, 0), true)}, 0, 1},
		{"blamed, but its own error is that it was told to stop",
			[]end{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, caught, &ErrorFile{Message: "context canceled", Time: at(2055), Interrupted: true}, true)}, 0, 1},
		{"blamed, but it left without an error",
			[]end{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, term, nil, true)}, 0, 1},
		{"blamed, but it had succeeded",
			[]end{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, Status{}, wrote(2055), true)}, 0, 1},
		{"blamed for what the stop did",
			[]end{exit(0, 2050, one, nil, false), exit(1, 2060, one, blamed(2056, 2), true), exit(2, 2060, caught, wrote(2055), true)}, 0, 1},
		{"a clock from before the attempt is not believed",
			[]end{exit(0, 50, one, wrote(10), false), exit(1, 3000, one, wrote(-9000), true)}, 1, 0},
	} {
		var failures []Failure
		for _, e := range test.ends {
			e.date(start, test.ends[0].Exited, e.late)
			if e.Time.Before(start.Add(-crashCredit)) {
				t.Errorf("%s: rank %d is dated %v, long before the attempt", test.name, e.Rank, e.Time)
			}
			failures = append(failures, e.Failure)
		}
		for i := range failures {
			failures[i].classify(test.ends[0].Exited, failures)
		}
		got := newFailureError("train", 1, 0, failures)
		if got.Root.Rank != test.root || len(got.Stopped) != test.stopped || 1+len(got.Others)+len(got.Stopped) != len(test.ends) {
			t.Errorf("%s: root rank %d, %d stopped; want %d, %d", test.name, got.Root.Rank, len(got.Stopped), test.root, test.stopped)
		}
	}
}

// The report begins with the analysis of the records, unless the analysis only says that
// the process of the root cause ended.
func TestReportBeginsWithTheRecords(t *testing.T) {
	for _, c := range []struct {
		finding *analyze.Finding
		shown   bool
	}{
		{nil, false},
		{&analyze.Finding{Kind: analyze.Dead, Ranks: []int{0}, Summary: "rank 0 died"}, false},
		{&analyze.Finding{Kind: analyze.Dead, Ranks: []int{1}, Summary: "rank 1 died"}, true},
		{&analyze.Finding{Kind: analyze.Dead, Ranks: []int{2}, Summary: "rank 2 died"}, false}, // and said why
		{&analyze.Finding{Kind: analyze.Dead, Ranks: []int{0, 1}, Summary: "ranks 0 and 1 died"}, true},
		{&analyze.Finding{Kind: analyze.Behind, Ranks: []int{0}, Summary: "rank 0 is behind"}, true},
		{&analyze.Finding{Kind: analyze.Behind, Ranks: []int{3}, Summary: "rank 3 is behind"}, true},
		{&analyze.Finding{Kind: analyze.Transport, Summary: "no byte moves"}, true},
	} {
		e := &FailureError{Program: "train", Nodes: 1, Root: Failure{Worker: Worker{PID: 1}, Status: Status{Code: 1}}, Meaning: &analyze.Report{}}
		for rank, said := range map[int]*ErrorFile{1: nil, 2: {Message: "no luck"}} {
			e.Others = append(e.Others, Failure{Worker: Worker{Rank: rank}, Status: Status{Code: 1}, ErrorFile: said})
		}
		want := "train FAILED\n" + frameLight + "\nRoot Cause"
		if c.finding != nil {
			e.Meaning.Findings = []analyze.Finding{*c.finding}
		}
		if c.shown {
			want = "train FAILED\n" + frameLight + "\nMost probable: " + c.finding.Summary
		}
		if report := e.Report(); !strings.Contains(report, want) {
			t.Errorf("%+v: want %q in\n%s", c.finding, want, report)
		} else if other := c.shown && len(c.finding.Ranks) > 0 && c.finding.Ranks[0] != 0; strings.Contains(report, "\n  culprit   : rank ") != other {
			t.Errorf("%+v: that rank 0 failed for another is %v in\n%s", c.finding, !other, report)
		}
	}
}

// All ranks that call comm.Agree return the same error. The report prints its text once.
func TestReportHasAnErrorOnce(t *testing.T) {
	failed := func(rank int, said string) Failure {
		return Failure{Worker: Worker{Rank: rank}, Status: Status{Code: 1}, ErrorFile: &ErrorFile{Message: said}}
	}
	e := &FailureError{Program: "train", Nodes: 1, Root: failed(0, "no room\nin /a")}
	for i, said := range []string{"no room\nin /a", "no luck", "no room\nin /b"} {
		e.Others = append(e.Others, failed(i+1, said))
	}
	report := e.Report()
	for want, times := range map[string]int{
		"pid: 0) exited with code 1 with the same error\n": 1, "pid: 0) exited with code 1: no luck\n": 1, "pid: 0) exited with code 1: no room\n": 1,
	} {
		if n := strings.Count(report, want); n != times {
			t.Errorf("%q is there %d times, want %d, in\n%s", want, n, times, report)
		}
	}
}

func TestParseErrorFile(t *testing.T) {
	for text, want := range map[string]ErrorFile{
		`{"message": {"message": "boom", "extraInfo": {"py_callstack": "at f", "timestamp": "1700000000.25"}}}`: {
			Message: "boom", Callstack: "at f", Time: time.UnixMilli(1_700_000_000_250)},
		`{"message": {"message": "boom", "extraInfo": {"timestamp": 1700000000}}}`: {Message: "boom", Time: time.Unix(1_700_000_000, 0)},
		`{"message": {"message": "boom"}}`:                                         {Message: "boom"},
		`{"message": "plain"}`:                                                     {Message: "plain"},
		`{"message": {"message": "boom", "extraInfo": {"timestamp": "NaN"}}}`:      {Message: "boom"},
		`{"message": {"message": "boom", "extraInfo": {"timestamp": "-1"}}}`:       {Message: "boom"},
		`{"message": {"message": "boom", "extraInfo": {"caused_by": "2"}}}`:        {Message: "boom", CausedBy: new(2)},
		`{"message": {"message": "boom", "extraInfo": {"interrupted": "true"}}}`:   {Message: "boom", Interrupted: true},
		`{"message": {"message": "boom", "extraInfo": {"caused_by": "x"}}}`:        {Message: "boom"},
	} {
		got, err := parseErrorFile([]byte(text))
		if err != nil || got.Message != want.Message || got.Callstack != want.Callstack || !got.Time.Equal(want.Time) || !reflect.DeepEqual(got.CausedBy, want.CausedBy) {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{`{}`, `[]`, `nonsense`, `{"message": 7}`, `{"message": {"message": 7}}`} {
		if got, err := parseErrorFile([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}

// FuzzErrorFile reads arbitrary error files, and copies them to the parent's error file.
// The copy must have the same content.
func FuzzErrorFile(f *testing.F) {
	for _, text := range []string{
		`{"message": {"message": "boom", "extraInfo": {"py_callstack": "at f", "timestamp": "1700000000.25", "caused_by": "2000000000"}}}`,
		`{"message": "plain"}`, `{"message": null}`, `{"message": {"message": "boom", "errorCode": {}}, "more": [1, 2]}`, "null", "[]", `{"message": {}}`,
		`{"message": {"message": "boom", "extraInfo": {"timestamp": 1e300}}}`,
		`{"a": [` + strings.Repeat("{},", 1000) + `{}], "message": "plain"}`,
		strings.Repeat("[", 20000), strings.Repeat(`{"message":`, 5000),
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path, outer := filepath.Join(dir, "inner.json"), filepath.Join(dir, "outer.json")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		root := &Failure{Worker: Worker{Rank: 3, PID: 77}, Status: Status{Code: 6}, Time: time.Unix(1_700_000_000, 0), errorPath: path}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := readErrorFile(path)
		copied := copyErrorFile(root, outer)
		runtime.ReadMemStats(&after)
		if taken, most := after.TotalAlloc-before.TotalAlloc, uint64(128<<10+64*len(data)); taken > most {
			t.Errorf("%d bytes taken for a file of %d, at most %d", taken, len(data), most)
		}
		if copied != nil {
			t.Fatal(copied)
		}
		if got != nil && !got.Time.IsZero() && got.Time.Unix() < 0 {
			t.Errorf("time %v", got.Time)
		}
		theirs, unread := readErrorFile(outer)
		if err != nil || got == nil {
			return // the copy is what this agent says, or as wrong as the file
		}
		if unread != nil || theirs.Message != got.Message || theirs.Callstack != got.Callstack || !reflect.DeepEqual(theirs.CausedBy, got.CausedBy) {
			t.Errorf("passed on as %+v, %v; came as %+v", theirs, unread, got)
		}
	})
}

func TestReadErrorFile(t *testing.T) {
	dir := t.TempDir()
	if got, err := readErrorFile(filepath.Join(dir, "none")); got != nil || err != nil {
		t.Errorf("a missing file is %v, %v", got, err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readErrorFile(bad); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("the error of a bad file is %v", err)
	}
}

// The agent writes an error file for a worker that wrote none.
func TestCopyErrorFileWithoutOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	root := &Failure{Worker: Worker{Rank: 3, PID: 77}, Status: Status{Signal: syscall.SIGKILL}, Time: time.Unix(1_700_000_000, 0)}
	if err := copyErrorFile(root, path); err != nil {
		t.Fatal(err)
	}
	if got, err := readErrorFile(path); err != nil || got.Message != "rank 3 (pid 77) was killed by SIGKILL" || !got.Time.Equal(root.Time) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestExitCode(t *testing.T) {
	for want, err := range map[int]error{
		0:   nil,
		1:   os.ErrClosed,
		7:   &FailureError{Root: Failure{Status: Status{Code: 7}}},
		137: fmt.Errorf("wrapped: %w", &FailureError{Root: Failure{Status: Status{Signal: syscall.SIGKILL}}}),
		143: &SignalError{syscall.SIGTERM},
		2:   &startError{Err: syscall.ENOEXEC},
	} {
		if got := ExitCode(err); got != want {
			t.Errorf("exit code of %v is %d, want %d", err, got, want)
		}
	}
}
