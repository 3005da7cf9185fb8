package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestExiting: a process that has ended is exiting before, and after, it is
// waited for; one that is running or suspended is not.
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

// TestForeignGroup: a group whose number has come back as a stranger's is left alone.
func TestForeignGroup(t *testing.T) {
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	pid := stranger.Process.Pid
	if found, err := leftovers("some-job", []int{pid}, func(int) {}); err != nil || slices.Contains(found, pid) {
		t.Error("a stranger that leads a group of the same number is among the leftovers")
	}
	_ = stranger.Process.Kill()
	_ = stranger.Wait()
}

// TestSweepOfForkers: a chain of processes, each of which forks the next and
// exits, as daemons do, is not lost from sight although a single look at the
// process table may miss it.
func TestSweepOfForkers(t *testing.T) {
	for round := range 10 {
		mark := fmt.Sprintf("LAUNCHER_TEST_MARK=%d.%d", os.Getpid(), round)
		j := shell(2, `setsid bash -c 'f() { [ $1 = 0 ] && exec sleep 1000; sleep 0.005; f $(($1-1)) & }; f 10' & sleep 0.02`)
		j.cfg.Env = append(os.Environ(), mark)
		if _, err := j.run(t); err != nil {
			t.Fatal(err)
		}
		for range 10 { // this look may miss it as well
			pids, err := allProcesses()
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids {
				if ours, _ := carries(pid, []byte(mark), make([]byte, environSize)); ours {
					t.Fatalf("round %d: process %d of the chain is left", round, pid)
				}
			}
		}
	}
}

// limitFiles lets this process open no file, until the returned function is called.
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

// TestSweepWithoutDescriptors: a sweep that cannot look does not take that for nothing
// left, and looks again.
func TestSweepWithoutDescriptors(t *testing.T) {
	stray := exec.Command("sleep", "1000")
	stray.Env = []string{jobIDVar + "=" + t.Name()}
	stray.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	pid := stray.Process.Pid
	restore := limitFiles(t)
	for _, groups := range [][]int{nil, {pid}} {
		if found, err := leftovers(t.Name(), groups, func(int) {}); len(found) > 0 || !errors.Is(err, syscall.EMFILE) {
			t.Errorf("groups %v: found %v, %v", groups, found, err)
		}
	}
	if left := killAll(t.Name(), nil, time.Millisecond, time.Millisecond); !errors.Is(left.err, syscall.EMFILE) {
		t.Errorf("when its time is over: %v", left)
	}
	if exiting(pid) {
		t.Error("a process that cannot be looked at is exiting")
	}
	time.AfterFunc(10*time.Millisecond, restore)
	if left := killAll(t.Name(), nil, time.Millisecond, soon); len(left.survivors) > 0 || left.err != nil || !exiting(pid) {
		t.Errorf("once it can look: %v", left)
	}
	_ = stray.Process.Kill()
	_ = stray.Wait()
}
