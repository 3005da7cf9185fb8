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
		fmt.Println("waiting")
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
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "waiting\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	const suspension = 2 * time.Second
	cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(suspension)
	cmd.Process.Signal(syscall.SIGCONT)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	took, err := time.ParseDuration(strings.TrimSpace(strings.TrimPrefix(line, "over ")))
	if least := suspension + time.Second*(parts-2)/parts; err != nil || took < least {
		t.Errorf("over after %v, want %v at least (%v)", took, least, err)
	}
}
