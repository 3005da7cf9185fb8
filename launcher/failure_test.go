package launcher

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/flight/analyze"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/failure"
)

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
		e := &FailureError{program: "train", nodes: 1, root: failure.Failure{PID: 1, Status: failure.Status{Code: 1}}, meaning: &analyze.Report{}}
		for rank, said := range map[int]*jobenv.ErrorFile{1: nil, 2: {Message: "no luck"}} {
			e.others = append(e.others, failure.Failure{Rank: rank, Status: failure.Status{Code: 1}, ErrorFile: said})
		}
		want := "train FAILED\n" + frameLight + "\nRoot Cause"
		if c.finding != nil {
			e.meaning.Findings = []analyze.Finding{*c.finding}
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
	failed := func(rank int, said string) failure.Failure {
		return failure.Failure{Rank: rank, Status: failure.Status{Code: 1}, ErrorFile: &jobenv.ErrorFile{Message: said}}
	}
	e := &FailureError{program: "train", nodes: 1, root: failed(0, "no room\nin /a")}
	for i, said := range []string{"no room\nin /a", "no luck", "no room\nin /b"} {
		e.others = append(e.others, failed(i+1, said))
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

// A report of many workers that golaunch stopped is short.
func TestReportOfManyStopped(t *testing.T) {
	e := &FailureError{program: "train", nodes: 1, root: failure.Failure{Status: failure.Status{Code: 1}}}
	for rank := 1; rank < 200; rank++ {
		status := failure.Status{Signal: syscall.SIGTERM}
		if rank == 7 {
			status = failure.Status{Code: 143}
		}
		e.stopped = append(e.stopped, failure.Failure{Rank: rank, Status: status})
	}
	want := "Stopped by golaunch:\n  exited with code 143: rank 7\n  was killed by SIGTERM: ranks 1-6, 8-199\n" + frameHeavy
	if report := e.Report(); !strings.Contains(report, want) {
		t.Errorf("want %q in\n%s", want, report)
	}
}

func TestExitCode(t *testing.T) {
	for want, err := range map[int]error{
		0:   nil,
		1:   os.ErrClosed,
		7:   &FailureError{root: failure.Failure{Status: failure.Status{Code: 7}}},
		137: fmt.Errorf("wrapped: %w", &FailureError{root: failure.Failure{Status: failure.Status{Signal: syscall.SIGKILL}}}),
		143: &SignalError{syscall.SIGTERM},
		2:   &startError{Err: syscall.ENOEXEC},
	} {
		if got := ExitCode(err); got != want {
			t.Errorf("exit code of %v is %d, want %d", err, got, want)
		}
	}
}
