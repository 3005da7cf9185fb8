package launcher

import (
	"fmt"
	"regexp"
	"slices"
)

const (
	headLines   = 3       // first lines of stderr in a report
	tailLines   = 20      // last lines
	tailLineMax = 1 << 10 // bytes of each
	crashLines  = 200     // lines from the beginning of a crash
)

// crashStart matches the line with which the Go runtime begins to die. A log
// line that merely contains such words does not start with them.
var crashStart = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: |unexpected fault address )`)

// tail remembers what a report shows of a worker's stderr: its last lines, and its
// first ones, since a Go program whose flags are wrong prints the reason first and then
// all there are; and, because one that crashes prints the reason first and then a stack
// for each goroutine, the lines with which it began to crash.
type tail struct {
	first []string
	count int      // of all lines
	last  []string // a ring once it holds tailLines
	next  int      // where the ring's oldest line is
	crash []string
}

func (t *tail) add(line []byte) {
	if len(line) > tailLineMax {
		line = line[:tailLineMax]
	}
	text := string(line)
	t.count++
	if len(t.first) < headLines {
		t.first = append(t.first, text)
	}
	if len(t.last) < tailLines {
		t.last = append(t.last, text)
	} else {
		t.last[t.next] = text
		t.next = (t.next + 1) % tailLines
	}
	switch {
	case len(t.crash) > 0 && len(t.crash) < crashLines:
		t.crash = append(t.crash, text)
	case crashStart.Match(line):
		t.crash = []string{text}
	}
}

// lines returns the last lines, oldest first.
func (t *tail) lines() []string {
	return slices.Concat(t.last[t.next:], t.last[:t.next])
}

// whole returns the first and the last lines, and between them how many are left out.
func (t *tail) whole() []string {
	left := t.count - len(t.last)
	if left <= headLines {
		return slices.Concat(t.first[:left], t.lines())
	}
	return slices.Concat(t.first, []string{fmt.Sprintf("... %d more ...", left-headLines)}, t.lines())
}
