package launcher

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit/daemon"
)

// A process that has ended is exiting, before and after its parent waits for it. A
// process that runs or is suspended is not.
func TestExiting(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if exiting(pid) {
		t.Error("a running process is exiting")
	}
	in.Close()
	for deadline := time.Now().Add(soon); !exiting(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a zombie is not exiting")
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if !exiting(pid) {
		t.Error("a process that is gone is not exiting")
	}
}

// A process of which only the main thread has ended is not exiting.
func TestExitingMainThread(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	cmd := daemon.Command(os.Args[0], daemon.Mainless, file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(soon); !daemon.Alive(file); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not come up")
		}
	}
	if exiting(cmd.Process.Pid) {
		t.Error("a process that has a living thread is exiting")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !exiting(cmd.Process.Pid) || daemon.Alive(file) {
		t.Error("a process that is gone is not exiting")
	}
}

// If the number of a process group belongs to a new process, groupMembers leaves it
// alone.
func TestGroupWithAReusedNumberIsLeftAlone(t *testing.T) {
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	pid := stranger.Process.Pid
	if found, err := groupMembers([]int{pid})(func(int) {}); err != nil || len(found) > 0 {
		t.Errorf("a stranger leads a group of the same number: found %v, %v", found, err)
	}
	_ = stranger.Process.Kill()
	_ = stranger.Wait()
}

// limitFiles prevents this process from opening files, until restore is called.
func limitFiles(t *testing.T) (restore func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// A finder that cannot read /proc returns an error, and not an empty list. killOrphans
// then searches again.
func TestOrphansWithoutDescriptors(t *testing.T) {
	orphan := exec.Command("sleep", "1000")
	orphan.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	pid := orphan.Process.Pid
	restore := limitFiles(t)
	if found, err := descendants(0)(func(int) {}); len(found) > 0 || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("found %v, %v", found, err)
	}
	if left := killOrphans(descendants(0), time.Millisecond, time.Millisecond); !strings.Contains(left.Error, syscall.EMFILE.Error()) {
		t.Errorf("when its time is over: %v", left)
	}
	if exiting(pid) {
		t.Error("a process that cannot be looked at is exiting")
	}
	time.AfterFunc(10*time.Millisecond, restore)
	if left := killOrphans(descendants(0), time.Millisecond, soon); len(left.Survivors) > 0 || left.Error != "" || !exiting(pid) {
		t.Errorf("once it can look: %v", left)
	}
	_ = orphan.Wait() // descendants has
}

// A child that this process keeps survives, and the others do not.
func TestDescendantsExceptOne(t *testing.T) {
	kept, orphan := exec.Command("cat"), exec.Command("cat")
	for _, cmd := range []*exec.Cmd{kept, orphan} {
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if left := killOrphans(descendants(kept.Process.Pid), time.Millisecond, soon); len(left.Survivors) > 0 || left.Error != "" {
		t.Errorf("left over: %+v", left)
	}
	if !exiting(orphan.Process.Pid) || exiting(kept.Process.Pid) {
		t.Errorf("the orphan has ended: %v, the child to keep: %v", exiting(orphan.Process.Pid), exiting(kept.Process.Pid))
	}
	_ = orphan.Wait() // descendants has
	if err := kept.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = kept.Wait() // it was killed
}
