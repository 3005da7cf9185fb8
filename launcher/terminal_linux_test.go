package launcher

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
)

// openTerminal returns a terminal of the given width, and the end from which what is written to it can be read.
func openTerminal(t *testing.T, columns int) (terminal, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs /dev/ptmx: ", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)})
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Skip("needs a pseudo-terminal: ", err)
	}
	return terminal, screen
}

// A worker learns how many columns it has on the terminal. A line that it redraws is cut there, and erased before another
// worker's line. A file gets all bytes, and the worker must not redraw then. A dumb terminal gets lines.
func TestTerminal(t *testing.T) {
	testkit.Long(t)
	for _, c := range []struct {
		term string
		tee  streamSet
		want string
	}{
		{"xterm", 0, "[default0]: 27 columns\r\x1b[K[default0]: 123456789012345678901234567\r\x1b[K[default0]: end\r\n"},
		{"xterm", stderrStream, "[default0]: 0 columns\r\x1b[K[default0]: 123456789012345678901234567\r\x1b[K[default0]: end\r\n"},
		{"dumb", 0, "[default0]: 0 columns\r\n[default0]: 123456789012345678901234567890\r\n[default0]: end\r\n"},
	} {
		t.Setenv("TERM", c.term)
		terminal, screen := openTerminal(t, 40)
		j := shell(1, `printf "%s columns\r\r123456789012345678901234567890\r\rend\n" "${GODDP_COLUMNS%:*}" >&2`)
		j.cfg.Stdout, j.cfg.Stderr, j.cfg.Tee, j.cfg.LogDir = terminal, terminal, allStreams(c.tee), t.TempDir()
		_, err := j.run(t)
		terminal.Close()
		shown, _ := io.ReadAll(screen) // ends with EIO
		if got := strings.ReplaceAll(string(shown), "\r\x1b[K\x1b[K", "\r\x1b[K"); err != nil || got != c.want {
			t.Errorf("TERM=%s, tee %d: %v, got\n%q, want\n%q", c.term, c.tee, err, got, c.want)
		}
	}
}
