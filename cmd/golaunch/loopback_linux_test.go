package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// Where no worker could reach the store, golaunch says so at once.
func TestLoopbackInterfaceIsDown(t *testing.T) {
	testkit.Need(t, testkit.Root)
	cmd := golaunch(t, nil, "--nproc-per-node=2", "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET} // whose only interface is down
	got := testkit.Run(t, cmd)
	if got.Code != 1 || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr, `the loopback interface is down: bring it up, with "ip link set lo up"`) {
		t.Errorf("got %+v", got)
	}
}
