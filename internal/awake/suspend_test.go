//go:build unix

package awake

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVar makes the test binary a process that waits for a timeout.
const childVar = "AWAKE_TEST_CHILD"

// After a suspension that is longer than the timeout, a process has the rest of its
// timeout, except for the part in which it was suspended.
func TestSuspensionDoesNotCount(t *testing.T) {
	if os.Getenv(childVar) != "" {
		fired := make(chan struct{})
		start := time.Now()
		AfterFunc(time.Second, func() { close(fired) })
		syscall.Kill(os.Getpid(), syscall.SIGSTOP) // itself, because the test may be late
		<-fired
		fmt.Println("over", time.Since(start))
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childVar+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it did not stop: status %#x, %v", status, err)
	}
	const suspension = 2 * time.Second
	time.Sleep(suspension)
	cmd.Process.Signal(syscall.SIGCONT)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	took, err := time.ParseDuration(strings.TrimSpace(strings.TrimPrefix(line, "over ")))
	if least := suspension + time.Second*(parts-2)/parts; err != nil || took < least {
		t.Errorf("over after %v, want %v at least (%v)", took, least, err)
	}
}
