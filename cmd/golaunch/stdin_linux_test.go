package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
)

// One worker reads what golaunch is given, after a restart what is left of it. The others read nothing.
func TestStdin(t *testing.T) {
	for args, want := range map[string]string{
		"--nproc-per-node=2":                  "[default0]: [one]\n[default1]: []\n",
		"--nproc-per-node=2 --stdin=1":        "[default0]: []\n[default1]: [one]\n",
		"--nproc-per-node=2 --stdin=none":     "[default0]: []\n[default1]: []\n",
		"--nproc-per-node=1 --max-restarts=1": "[default0]: [one]\n[default0]: [two]\n",
	} {
		cmd := golaunch(t, nil, append(strings.Fields(args), "bash", "-c", `read line; echo "[$line]"; exit $((TORCHELASTIC_MAX_RESTARTS - TORCHELASTIC_RESTART_COUNT))`)...)
		cmd.Stdin = strings.NewReader("one\ntwo\n")
		lines := strings.SplitAfter(testkit.Run(t, cmd).Stdout, "\n")
		slices.Sort(lines)
		if got := strings.Join(lines, ""); got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
}

// terminal returns both ends of a terminal.
func terminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { user.Close() })
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// A worker reads the terminal of a golaunch in the foreground, and Ctrl-C there is for golaunch. In the background it reads
// nothing, and is not suspended.
func TestTerminal(t *testing.T) {
	user, program := terminal(t)
	cmd := golaunch(t, nil, "bash", "-c", `read line; echo "[$line]"; exec sleep 1000`)
	cmd.Stdin, cmd.SysProcAttr = program, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := testkit.Start(t, cmd)
	for _, text := range []string{"hello\n", "\x03"} {
		if _, err := user.WriteString(text); err != nil {
			t.Fatal(err)
		}
		p.Await(`\[hello\]`, 1)
	}
	if code := p.Wait(); code != 130 {
		t.Errorf("Ctrl-C: exit code %d, want 130", code)
	}

	_, program = terminal(t)
	cmd = golaunch(t, nil, "bash", "-c", `read line; echo "[$line]"`)
	shell := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `set -m; "$0" "$@" & wait $!`}, cmd.Args...)...)
	shell.Env, shell.Stdin, shell.SysProcAttr = cmd.Env, program, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p = testkit.Start(t, shell)
	if code := p.Wait(); code != 0 {
		t.Errorf("in the background: exit code %d", code)
	}
	p.Expect(`^\[default0\]: \[\]$`, 1)
}
