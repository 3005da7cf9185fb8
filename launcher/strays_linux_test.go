package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
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
	if found := leftovers("some-job", []int{pid}, func(int) {}); slices.Contains(found, pid) {
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
			for _, pid := range allProcesses() {
				if ours, _ := carries(pid, []byte(mark), make([]byte, environSize)); ours {
					t.Fatalf("round %d: process %d of the chain is left", round, pid)
				}
			}
		}
	}
}
