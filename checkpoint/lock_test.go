package checkpoint

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// While one job uses a folder, another one gets an error that names it, and does not disturb it. When the first job has
// closed its manager, the second one gets the folder.
func TestAFolderIsOfOneJob(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "model.safetensors")
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		first, m, err := begin(pg, dir, plain, 1, Options{Async: true})
		if err != nil {
			return err
		}
		if err := m.fs.Mkdir(m.temp("in flight")); err != nil {
			return err
		}
		for range 2 { // a job that was refused leaves the first one the owner
			_, err = Open(t.Context(), pg, dir, &Options{grace: time.Nanosecond})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d on ", os.Getpid())) || strings.Contains(err.Error(), "\n") {
				t.Errorf("rank %d: %v, want the process that uses the folder", pg.Rank(), err)
			}
		}
		if _, err := os.Stat(m.temp("in flight")); err != nil {
			t.Error(err)
		}
		if err := m.Save(t.Context(), 1, first.state()); err != nil {
			return err
		}
		if err := m.Wait(t.Context()); err != nil {
			return err
		}
		if pg.Rank() == 0 {
			if err := Export(dir, file, false); err != nil {
				t.Errorf("a reader: %v", err)
			}
			if _, err := Import(file, dir); err == nil || !strings.Contains(err.Error(), "only one job at a time") {
				t.Errorf("Import: %v", err)
			}
		}
		if err := errors.Join(m.Close(), m.Close()); err != nil {
			return err
		}
		second, err := Open(t.Context(), pg, dir, &Options{grace: time.Nanosecond})
		if err != nil {
			return err
		}
		return second.Close()
	})
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// logged is a log's output that calls a function with each line.
type logged func(line string)

func (l logged) Write(line []byte) (int, error) {
	l(string(line))
	return len(line), nil
}

// Open waits for an earlier attempt of its own job, and says so.
func TestARestartedJobWaitsForTheOneBefore(t *testing.T) {
	t.Setenv("GODDP_JOB_ID", "requeued")
	dir := t.TempDir()
	before, err := tryLock(dir, holder{ID: "before", Job: "requeued", Host: "elsewhere", PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceValue(before.release)
	log := slog.New(slog.NewTextHandler(logged(func(line string) {
		if strings.Contains(line, "waiting for its end") && strings.Contains(line, `of job \"requeued\"`) {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	}), nil))
	commtest.OnGoroutines(t, 2, &comm.Options{Log: log}, func(pg *comm.ProcessGroup) error {
		m, err := Open(t.Context(), pg, dir, &Options{grace: time.Nanosecond})
		if err != nil {
			return err
		}
		return m.Close()
	})
}

// If another job takes a folder, because the file system has no locks or somebody has deleted the file, the error of
// the save that this breaks names it.
func TestTheErrorOfASaveNamesTheJobThatTookTheFolder(t *testing.T) {
	dir := t.TempDir()
	take := func(phase string) {
		if phase != "commit" {
			return
		}
		if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
			t.Error(err)
		}
		if _, err := tryLock(dir, holder{ID: "other", Host: "elsewhere", PID: 7}); err != nil {
			t.Error(err)
		}
		if temps, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*")); err != nil || os.RemoveAll(temps[0]) != nil {
			t.Error(err)
		}
	}
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, m, err := begin(pg, dir, plain, 1, Options{phase: take})
		if err != nil {
			return err
		}
		if err := m.Save(t.Context(), 1, r.state()); err == nil || !strings.Contains(err.Error(), "process 7 on elsewhere") {
			t.Errorf("rank %d: %v, want the process that took the folder", pg.Rank(), err)
		}
		return m.Close()
	})
	if now := readHolder(dir); now.ID != "other" {
		t.Errorf("%v is the holder, want that which took the folder", now)
	}
}

// What a crash has left does not keep a job out, and anything but a regular file is an error.
func TestLockFilesOfOtherKinds(t *testing.T) {
	for want, create := range map[string]func(path string) error{
		"":                                  func(path string) error { return os.WriteFile(path, []byte(`{"id":"crashed","pid":1}`), 0o600) },
		"too many levels of symbolic links": func(path string) error { return os.Symlink(t.TempDir(), path) },
		"invalid argument":                  func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"is a directory":                    func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		dir := t.TempDir()
		if err := create(filepath.Join(dir, lockName)); err != nil {
			t.Fatal(err)
		}
		l, err := lockFolder(dir, newHolder("new"), func(holder) time.Duration { return 0 })
		if want == "" {
			if err != nil || readHolder(dir).ID != "new" {
				t.Errorf("%v, %v", err, readHolder(dir))
			}
			err = l.release()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
