package launcher

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/progress"
)

// testReporter reports some steps, and fails.
func testReporter() {
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	check(err)
	m, err := progress.New(rank, &progress.Options{Every: 1, Out: io.Discard})
	check(err)
	for step := range 3 {
		m.Lap("data")
		m.Step(1)
		m.Log(progress.V("loss", float64(step)))
	}
	check(m.Close())
	fmt.Println("rank", rank, "ends")
	os.Exit(1)
}

// A run's folder holds what the workers reported and wrote, how they ended, and the culprit. The next run goes on with it.
func TestRunDir(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	program := testkit.Self(t, "reporter")
	for range 2 {
		_, err := Run(t.Context(), &Config{Args: program.Args, Env: program.Env, RunDir: dir, Stdout: io.Discard, Stderr: io.Discard})
		if ExitCode(err) != 1 {
			t.Fatal(err)
		}
		r := page.NewRun(page.Info{})
		if err := r.Load(dir); err != nil {
			t.Fatal(err)
		}
		s := r.State()
		if s.Status != "failed" || len(s.Culprits) != 1 || s.Culprits[0] != 0 || !strings.Contains(s.Failure, "FAILED") {
			t.Errorf("%s, culprits %v, failure %q", s.Status, s.Culprits, s.Failure)
		}
		if len(s.Ranks) != 1 || s.Ranks[0].State != "exited with code 1" || s.Ranks[0].Step != 3 {
			t.Errorf("ranks %+v", s.Ranks)
		}
		if c := r.Curves(telemetry.Values, "loss", 0, -1, 10, true); fmt.Sprint(c.Steps) != "[1 2 3]" || c.Ranks[0].Mean[2] != 2 {
			t.Errorf("curves %+v", c)
		}
		if lines := r.Lines(0); len(lines) == 0 || lines[len(lines)-1].Text != "rank 0 ends" {
			t.Errorf("lines %v", lines)
		}
	}
}

// A folder keeps the run of one job at a time.
func TestRunDirOfAnotherJob(t *testing.T) {
	dir := t.TempDir()
	open := func() (v *view, err error) {
		v = newView(&Config{RunDir: dir})
		v.isOpen = true
		return v, v.keep(nil)
	}
	first, err := open()
	check(err)
	second, err := open()
	if err == nil || !strings.Contains(err.Error(), "another job keeps its run in "+dir) {
		t.Errorf("two jobs keep their runs in one folder: %v", err)
	}
	check(second.close(nil))
	check(first.close(nil))
	third, err := open()
	if err != nil {
		t.Errorf("the first job has ended: %v", err)
	}
	check(third.close(nil))
}

// reportCounter is an observer that counts reports.
type reportCounter struct {
	observer
	n int
}

func (c *reportCounter) Report(int, []byte) error { c.n++; return nil }

// A worker that sends many small datagrams, or empty ones, does not keep the agent busy.
func TestSmallReportsArePaced(t *testing.T) {
	for _, size := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			p := &process{reports: reports{conn: ours}}
			var counter reportCounter
			var copying sync.WaitGroup
			copying.Go(func() { p.copyReports(&counter) })
			if err := theirs.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			var err error
			for err == nil {
				_, err = theirs.Write(make([]byte, size))
			}
			theirs.Close()
			copying.Wait()
			if most := reportRate/reportCost + 1; counter.n > most {
				t.Errorf("%d datagrams of %d bytes in a second, want at most %d", counter.n, size, most)
			}
		})
	}
}

// What a worker has reported before its end is not lost if the agent comes late to read it.
func TestReportsAreReadToTheEnd(t *testing.T) {
	ours, theirs, err := telemetry.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	for range 3 {
		if _, err := theirs.Write([]byte("report")); err != nil {
			t.Fatal(err)
		}
	}
	if err := ours.SetReadDeadline(time.Unix(1, 0)); err != nil { // endSoon's deadline has passed
		t.Fatal(err)
	}
	p := &process{reports: reports{conn: ours}}
	var counter reportCounter
	if p.copyReports(&counter); counter.n != 3 {
		t.Errorf("%d reports of 3 were read", counter.n)
	}
}

// A job whose page cannot be served, or whose run cannot be kept, does not start, and the folder holds the run that it held.
func TestPageThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := page.NewRun(page.Info{Name: "earlier"}).Save(dir); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for want, cfg := range map[string]*Config{
		"port port: want 0 to 65535": {Page: "127.0.0.1:port", RunDir: dir},
		"address already in use":     {Page: other.Addr().String(), RunDir: dir},
		"not a directory":            {Page: "127.0.0.1", RunDir: file},
	} {
		cfg.Args, cfg.Stdout, cfg.Stderr = []string{"true"}, io.Discard, io.Discard
		if result, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || result != nil {
			t.Errorf("%v, %+v, want %q", err, result, want)
		}
	}
	if now, err := os.ReadFile(filepath.Join(dir, "run.json")); err != nil || !bytes.Equal(now, kept) {
		t.Errorf("the kept run became %q, %v", now, err)
	}
}
