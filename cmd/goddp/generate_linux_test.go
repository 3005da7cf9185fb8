package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// A chat on a terminal goes on without a line that is too long, and ends on a line of its own.
func TestChatOnTerminal(t *testing.T) {
	t.Setenv("GODDP_DEVICE", "cpu")
	t.Setenv("TERM", "xterm")
	dir := modelFolder(t, cputest.New(t))
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs /dev/ptmx: ", err)
	}
	defer user.Close()
	must.New(0, unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0))
	number := must.New(unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN))
	program := must.New(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))
	defer program.Close()
	must.New(user.WriteString(strings.Repeat("b", 17) + "\nbbb\n\x04"))
	defer func(before *os.File) { os.Stdin = before }(os.Stdin)
	os.Stdin = program
	code, out, stderr := goddp(t, "generate", dir, "--max-tokens", "2")
	want := "> goddp generate: the prompt has 17 tokens with those before, want 1 to 15 (--context, and at most what the model has)\n> > \n"
	if code != 0 || strings.Count(out, "\n") != 1 || stderr != want {
		t.Errorf("exit code %d, %q, %q, want one answer and %q", code, out, stderr, want)
	}
}
