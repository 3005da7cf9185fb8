package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/testkit"
)

// recorders is a job of four workers with flight recorders. When all workers are in the
// middle of a call, rank 2 is suspended, then act is called, and then rank 1 is killed.
func recorders(t *testing.T, act func()) *job {
	j := role(t, 4, "recorder")
	var pids [4]int
	j.cfg.OnStart = func(w Worker) {
		pids[w.Rank] = w.PID
		if w.Rank < 3 || w.Attempt > 0 {
			return
		}
		var ready []<-chan struct{}
		for rank := range 4 {
			ready = append(ready, j.out.contains("[default"+strconv.Itoa(rank)+"]: recorded"))
		}
		pids := pids
		go func() {
			for _, c := range ready {
				<-c
			}
			_ = syscall.Kill(pids[2], syscall.SIGSTOP)
			for deadline := time.Now().Add(soon); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				if status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[2])); strings.Contains(string(status), "\nState:\tT") {
					break
				}
			}
			if act != nil {
				act()
			}
			_ = syscall.Kill(pids[1], syscall.SIGKILL)
		}()
	}
	return j
}

func TestRecordsOfAFailure(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	found := make(chan []*flight.Dump, 1)
	j := recorders(t, func() {
		live, _ := flight.Find(strconv.Itoa(os.Getpid()))
		found <- live
	})
	failed := j.fail(t)
	if live := <-found; len(live) != 4 {
		t.Errorf("%d records of the running job, want 4", len(live))
	}
	if want := "goddp analyze " + failed.records + "\n"; failed.records == "" || !strings.Contains(failed.Report(), want) {
		t.Errorf("the report lacks %q:\n%s", want, failed.Report())
	}
	if entries, err := filepath.Glob(os.TempDir() + "/*/*/*"); len(entries) != 1 || entries[0] != failed.records {
		t.Errorf("%q, %v are left, want only the flight records", entries, err)
	}
	if n := strings.Count(j.err.String(), os.TempDir()); n != 1 {
		t.Errorf("the console names what is left %d times, want once:\n%s", n, &j.err)
	}
	dumps, err := flight.ReadDir(failed.records)
	if err != nil || len(dumps) != 4 {
		t.Fatalf("%d records in %q, want 4; %v", len(dumps), failed.records, err)
	}
	for rank, want := range []flight.Dump{
		{}, {Fate: "was killed by SIGKILL"}, {Fate: "is suspended"}, {Reason: "told to stop"},
	} {
		d := dumps[rank]
		if d.Rank != rank || d.PID != j.workers[rank].PID || d.Fate != want.Fate || d.Reason != want.Reason || d.FateAt.IsZero() != (rank != 1) {
			t.Errorf("rank %d, pid %d: fate %q at %v, reason %q; want pid %d, %q, %q",
				d.Rank, d.PID, d.Fate, d.FateAt, d.Reason, j.workers[rank].PID, want.Fate, want.Reason)
		}
		if len(d.Records) != 1 || d.Records[0].State.State != backend.Running {
			t.Errorf("rank %d: records %v", rank, d.Records)
		}
	}
}

// If a worker fails on one node, the records of all nodes are written, and each node names its folder.
func TestRecordsOfAFailureOnAnotherNode(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	jobs := []*job{role(t, 1, "recorder"), role(t, 1, "recorder")}
	victim := make(chan int, 1)
	for _, j := range jobs {
		j.cfg.OnStart = func(w Worker) {
			if w.Rank == 1 {
				victim <- w.PID
			}
		}
	}
	wait := startNodes(t, &Nodes{Min: 2, Max: 2, Static: true}, jobs...)
	for _, j := range jobs {
		select {
		case <-j.out.contains("recorded"):
		case <-time.After(soon):
			t.Fatalf("no record\n%s", &j.err)
		}
	}
	pid := <-victim
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i, r := range wait() {
		var failed *FailureError
		if !errors.As(r.err, &failed) || failed.root.PID != pid {
			t.Fatalf("node %d: %v\n%s", i, r.err, &r.job.err)
		}
		dumps, err := flight.ReadDir(failed.records)
		if want := []string{"", "was killed by SIGKILL"}[i]; err != nil || len(dumps) != 1 || dumps[0].Rank != i || dumps[0].Fate != want {
			t.Errorf("node %d: records %+v in %q, %v; want fate %q", i, dumps, failed.records, err, want)
		}
	}
}

func TestRecordsGoWhereTheyShould(t *testing.T) {
	// The records of a job that a worker starts go to the folder that the user chose. If the user chose none, they do
	// not go among those of the outer job.
	chosen := filepath.Join(t.TempDir(), "chosen")
	nested := func(chosen string) []string {
		outer := shell(1, `env | grep FLIGHT_DIR`)
		outer.cfg.Env = append(os.Environ(), "GODDP_FLIGHT_DIR="+chosen)
		if _, err := outer.run(t); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.ReplaceAll(outer.out.String(), "[default0]: ", ""), "\n")
	}
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	for name, c := range map[string]struct {
		logs string
		env  []string
		want string // a pattern of the folder; "" means that there is none
	}{
		"log folder":          {logs, nil, logs + "/*/attempt_0/flight"},
		"chosen folder":       {"", []string{"GODDP_FLIGHT_DIR=" + chosen}, chosen},
		"shared folder":       {"", []string{"GODDP_FLIGHT_DIR=" + shared}, shared + "/goddp_flight_*"},
		"nested, none chosen": {logs, nested(""), logs + "/*/attempt_0/flight"},
		"nested, one chosen":  {logs, nested(chosen), chosen},
		"nowhere":             {"", []string{"TORCH_NCCL_DUMP_ON_TIMEOUT=0"}, ""},
	} {
		temp := t.TempDir()
		t.Setenv("TMPDIR", temp)
		j := recorders(t, nil)
		j.cfg.LogDir, j.cfg.Env = c.logs, append(j.cfg.Env, c.env...)
		failed := j.fail(t)
		if ok, _ := filepath.Match(c.want, failed.records); !ok || strings.Contains(failed.Report(), "goddp analyze") != (c.want != "") {
			t.Errorf("%s: records are in %q, want %q; the report is\n%s", name, failed.records, c.want, failed.Report())
		}
		if left, err := os.ReadDir(temp); len(left) != 0 || err != nil {
			t.Errorf("%s: the temporary folder holds %v, %v", name, left, err)
		}
		if c.want == "" {
			continue
		}
		if dumps, err := flight.ReadDir(failed.records); len(dumps) != 4 || err != nil {
			t.Errorf("%s: %d records, %v", name, len(dumps), err)
		}
		if info, err := os.Stat(failed.records); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: the records' folder is %v, %v", name, info, err)
		}
	}
}

// Nothing is written into a folder of another user.
func TestRecordsInTheFolderOfAStranger(t *testing.T) {
	testkit.Need(t, testkit.Root)
	j := recorders(t, nil)
	dir := t.TempDir()
	precious := filepath.Join(t.TempDir(), "precious")
	if err := errors.Join(os.WriteFile(precious, nil, 0o600), os.Symlink(precious, filepath.Join(dir, flight.File(1))),
		os.Chown(dir, 65534, 65534), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	j.cfg.Env = append(j.cfg.Env, "GODDP_FLIGHT_DIR="+dir)
	if failed := j.fail(t); failed.records != "" {
		t.Errorf("records are in %q", failed.records)
	}
	if !strings.Contains(j.err.String(), "users other than 0, this process's user, can write into it") {
		t.Errorf("no reason in\n%s", &j.err)
	}
	if got, err := os.ReadFile(precious); err != nil || len(got) > 0 {
		t.Errorf("written through the stranger's link: %q, %v", got, err)
	}
}

func TestRecorderSettings(t *testing.T) {
	unused := shell(1, "readlink /proc/$$/fd/$GODDP_FLIGHT_FD; exit 3")
	if failed := unused.fail(t); failed.root.Status.Code != 3 || failed.records != "" || !strings.Contains(unused.out.String(), "memfd:goddp-flight") {
		t.Errorf("a worker that records nothing: stdout %q\n%s", &unused.out, failed.Report())
	}
	j := shell(1, "true")
	j.cfg.Env = append(os.Environ(), "GODDP_FLIGHT_ENTRIES=many")
	if result, err := j.run(t); err == nil || result != nil || !strings.Contains(err.Error(), `GODDP_FLIGHT_ENTRIES="many"`) {
		t.Errorf("got %v, %v", result, err)
	}
	j = shell(1, `echo "fd=<$GODDP_FLIGHT_FD>"; readlink /proc/$$/fd/3; true`)
	j.cfg.Env = append(os.Environ(), "GODDP_FLIGHT_ENTRIES=0", "GODDP_FLIGHT_FD=77")
	if _, err := j.run(t); err != nil || !strings.Contains(j.out.String(), "fd=<>\n") || strings.Contains(j.out.String(), "goddp-flight") {
		t.Errorf("switched off: %q, %v", &j.out, err)
	}
}
