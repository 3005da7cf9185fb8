package launcher

import (
	"regexp"
	"slices"
)

const (
	tailLines   = 20      // lines of stderr in a report
	tailLineMax = 1 << 10 // bytes of each
)

// crashStart matches the line with which the Go runtime begins to die. A log
// line that merely contains such words does not start with them.
var crashStart = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: |unexpected fault address )`)

// tail remembers what a report shows of a worker's stderr: its last lines, and,
// because a Go program that crashes prints the reason first and then a stack
// for each goroutine, the lines with which it began to crash.
type tail struct {
	last  []string // a ring once it holds tailLines
	next  int      // where the ring's oldest line is
	crash []string
}

func (t *tail) add(line []byte) {
	if len(line) > tailLineMax {
		line = line[:tailLineMax]
	}
	text := string(line)
	if len(t.last) < tailLines {
		t.last = append(t.last, text)
	} else {
		t.last[t.next] = text
		t.next = (t.next + 1) % tailLines
	}
	switch within := len(t.crash) > 0 && len(t.crash) < tailLines; {
	case within:
		t.crash = append(t.crash, text)
	case crashStart.Match(line):
		t.crash = []string{text}
	}
}

// lines returns the last lines, oldest first.
func (t *tail) lines() []string {
	return slices.Concat(t.last[t.next:], t.last[:t.next])
}
