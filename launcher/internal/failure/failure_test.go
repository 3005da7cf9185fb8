package failure

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
)

func TestJudge(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	wrote := func(ms int) *jobenv.ErrorFile { return &jobenv.ErrorFile{Message: "error", Time: at(ms)} }
	blamed := func(ms, rank int) *jobenv.ErrorFile {
		return &jobenv.ErrorFile{Message: "rank lost", Time: at(ms), CausedBy: &rank}
	}
	exit := func(rank, ms int, s Status, ef *jobenv.ErrorFile, late bool) Failure {
		return Failure{Rank: rank, Status: s, Exited: at(ms), ErrorFile: ef, IsLate: late, Stopped: late && s.IsEffectOf(syscall.SIGTERM, false)}
	}
	one, term, kill := Status{Code: 1}, Status{Signal: syscall.SIGTERM}, Status{Signal: syscall.SIGKILL}
	caught := Status{Code: 128 + int(syscall.SIGTERM)}
	abort := Status{Signal: syscall.SIGABRT}
	for _, test := range []struct {
		name    string
		ends    []Failure // in the order observed
		root    int
		stopped int
	}{
		{"the only one", []Failure{exit(3, 2000, one, nil, false)}, 3, 0},
		{"order decides between equals", []Failure{exit(1, 2000, one, nil, false), exit(0, 2000, one, nil, false)}, 1, 0},
		{"an echo's error file is older than the cause's observed exit",
			[]Failure{exit(2, 2005, one, nil, false), exit(0, 2006, one, wrote(2001), true)}, 2, 0},
		{"the cause exits slowly, its echo is seen first",
			[]Failure{exit(0, 2050, one, wrote(2040), true), exit(2, 2300, one, wrote(2000), true)}, 2, 0},
		{"a crash outranks what others wrote up to a second before it was seen",
			[]Failure{exit(2, 2900, kill, nil, false), exit(0, 2901, one, wrote(2100), true)}, 2, 0},
		{"but not what was written long before",
			[]Failure{exit(2, 3900, kill, nil, false), exit(0, 3901, one, wrote(2100), true)}, 0, 0},
		{"a watchdog's abort is no crash",
			[]Failure{exit(1, 2900, abort, nil, false), exit(0, 2901, one, wrote(2100), true)}, 0, 0},
		{"stopped while tearing down after its error",
			[]Failure{exit(0, 2050, one, wrote(2040), false), exit(2, 2060, term, wrote(2000), true)}, 2, 0},
		{"an error file that the stop caused", // interrupted, it complains
			[]Failure{exit(0, 2050, one, nil, false), exit(2, 2060, term, wrote(2055), true)}, 0, 1},
		{"told to stop after it closed its connections, before it wrote its error file",
			[]Failure{exit(0, 2050, one, blamed(2040, 2), false), exit(1, 2055, caught, blamed(2052, 2), true), exit(2, 2060, caught, wrote(2055), true)}, 2, 1},
		{"blamed, but it blames another too",
			[]Failure{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, caught, blamed(2055, 0), true)}, 0, 1},
		{"blamed, but its own error is that it was told to stop",
			[]Failure{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, caught, &jobenv.ErrorFile{Message: "context canceled", Time: at(2055), Interrupted: true}, true)}, 0, 1},
		{"blamed, but it left without an error",
			[]Failure{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, term, nil, true)}, 0, 1},
		{"blamed, but it had succeeded",
			[]Failure{exit(0, 2050, one, blamed(2040, 2), false), exit(2, 2060, Status{}, wrote(2055), true)}, 0, 1},
		{"blamed for what the stop did",
			[]Failure{exit(0, 2050, one, nil, false), exit(1, 2060, one, blamed(2056, 2), true), exit(2, 2060, caught, wrote(2055), true)}, 0, 1},
		{"blamed by an error file without a time",
			[]Failure{exit(0, 2050, one, &jobenv.ErrorFile{Message: "rank lost", CausedBy: new(2)}, false), exit(2, 2060, caught, wrote(2055), true)}, 2, 0},
		{"blamed without a time for what the stop did",
			[]Failure{exit(0, 2050, one, nil, false), exit(1, 2060, one, &jobenv.ErrorFile{Message: "rank lost", CausedBy: new(2)}, true), exit(2, 2060, caught, wrote(2055), true)}, 0, 1},
		{"a clock from before the attempt is not believed",
			[]Failure{exit(0, 50, one, wrote(10), false), exit(1, 3000, one, wrote(-9000), true)}, 1, 0},
	} {
		Judge(test.ends, start, test.ends[0].Exited)
		Sort(test.ends)
		root, stopped := -1, 0
		for _, f := range test.ends {
			switch {
			case f.Stopped:
				stopped++
			case root < 0:
				root = f.Rank
			}
			if f.Time.Before(start) {
				t.Errorf("%s: rank %d failed at %v, before the attempt", test.name, f.Rank, f.Time)
			}
		}
		if root != test.root || stopped != test.stopped {
			t.Errorf("%s: root rank %d, %d stopped; want %d, %d", test.name, root, stopped, test.root, test.stopped)
		}
	}
}

// A failure that is too long loses its long texts, but not what tells the root cause.
func TestBrief(t *testing.T) {
	cause, at := 3, time.Unix(1_700_000_000, 0)
	long := Failure{Rank: 1, Time: at, Stderr: []string{strings.Repeat("x", 3000)},
		ErrorFile: &jobenv.ErrorFile{Message: "rank 3 lost\nand more", Callstack: "stack", Time: at, Interrupted: true, CausedBy: &cause}}
	got := Bound([]Failure{long, {Rank: 3, Time: at.Add(time.Second)}}, 2000)
	if len(got) != 2 {
		t.Fatalf("%d failures, want 2", len(got))
	}
	if e := got[0].ErrorFile; got[0].Stderr != nil || e == nil || e.Message != "rank 3 lost" || e.Callstack != "" || !e.Time.Equal(at) || !e.Interrupted {
		t.Errorf("got %+v with the error file %+v", got[0], e)
	}
	if Sort(got); got[0].Rank != cause {
		t.Errorf("the root cause is rank %d, want %d", got[0].Rank, cause)
	}
	if long.ErrorFile.Callstack == "" {
		t.Error("the original has changed")
	}
}

// Failures take no more bytes than they may. The first ones keep their long texts.
func TestBound(t *testing.T) {
	for _, c := range []struct{ failures, text, size, want, whole int }{
		{3, 1000, 64 << 10, 3, 3},
		{3, 10_000, 16 << 10, 3, 1},
		{3, 40_000, 64 << 10, 3, 3}, // shortened
		{5_000, 0, 512 << 10, 1500, 1500},
		{100, 10_000, 6_000, 16, 0},
	} {
		all := make([]Failure, c.failures)
		for i := range all {
			all[i] = Failure{Host: "host", Status: Status{Code: 1}, Stderr: []string{strings.Repeat("x", c.text)}}
		}
		got := Bound(all, c.size)
		whole := 0
		for _, f := range got {
			if f.Stderr != nil {
				whole++
			}
		}
		if n := len(mustMarshal(got)); len(got) < c.want || whole < c.whole || n > c.size+len(got)+1 {
			t.Errorf("%+v: %d failures, %d of them whole, take %d bytes", c, len(got), whole, n)
		}
	}
}
