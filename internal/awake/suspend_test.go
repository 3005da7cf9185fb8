//go:build unix

package awake

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, map[string]func(){"suspended": suspended}) }

// suspended suspends itself while it waits for a timeout of a second.
func suspended() {
	fired := make(chan struct{})
	start := time.Now()
	AfterFunc(time.Second, func() { close(fired) })
	syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-fired
	fmt.Println("over", time.Since(start))
}

// After a suspension that is longer than the timeout, a process has the rest of its
// timeout, except for the part in which it was suspended.
func TestSuspensionDoesNotCount(t *testing.T) {
	testkit.Long(t)
	p := testkit.Start(t, testkit.Self(t, "suspended"))
	p.AwaitStop()
	const suspension = 2 * time.Second
	time.Sleep(suspension)
	p.Signal(syscall.SIGCONT)
	took, err := time.ParseDuration(strings.TrimPrefix(p.Await("^over ", 1).Text, "over "))
	if least := suspension + time.Second*(parts-2)/parts; err != nil || took < least {
		t.Errorf("over after %v, want %v at least (%v)", took, least, err)
	}
}
