package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lines reads the lines that a running command writes to stdout.
type lines struct{ *bufio.Scanner }

// start starts cmd and reads its stdout. It reads stderr only if cmd directs it there.
// The test waits for the end of cmd.
func start(t *testing.T, cmd *exec.Cmd) lines {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = io.Discard
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return lines{bufio.NewScanner(out)}
}

// expect reads until n lines have contained text.
func (l lines) expect(t *testing.T, text string, n int) {
	t.Helper()
	for n > 0 && l.Scan() {
		if strings.Contains(l.Text(), text) {
			n--
		}
	}
	if n > 0 {
		t.Fatalf("%d lines with %q are missing: %v", n, text, l.Err())
	}
}

// processes returns the processes that have variable, a NAME=value, in their environment,
// without zombies. The test reads /proc with its own code, so that it does not share a
// mistake with the code under test.
func processes(t *testing.T, variable string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), variable) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// reaperOf returns the reaper of a golaunch, which is its only child.
func reaperOf(t *testing.T, golaunch int) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", golaunch))
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, name := range lists {
		list, _ := os.ReadFile(name)
		children = append(children, strings.Fields(string(list))...)
	}
	if len(children) != 1 {
		t.Fatalf("golaunch's children are %v, want its reaper alone", children)
	}
	pid, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// expectNone waits until no process has the variable in its environment.
func expectNone(t *testing.T, what, variable string) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for {
		left := processes(t, variable)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, pid := range left {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				t.Errorf("%s is left: %d %q", what, pid, cmdline)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// expectGone waits for the end of a process that is not a child.
func expectGone(t *testing.T, what string, pid int) {
	t.Helper()
	for deadline := time.Now().Add(soon); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s is left: %d", what, pid)
			return
		}
	}
}

// expectNoGroup waits until none of pids leads a process group with members.
func expectNoGroup(t *testing.T, pids []int) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for _, pid := range pids {
		for syscall.Kill(-pid, 0) == nil {
			if time.Now().After(deadline) {
				t.Errorf("process group %d is left", pid)
				_ = syscall.Kill(-pid, syscall.SIGKILL)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}
