package launcher

import (
	"fmt"
	"regexp"
	"slices"
)

const (
	headLines   = 3       // number of first lines of stderr that are kept
	tailLines   = 20      // number of last lines of stderr that are kept
	tailLineMax = 1 << 10 // longest part of a line that is kept, in bytes
	crashLines  = 200     // number of lines that are kept of a Go runtime's crash report
)

// crashStart matches the first line of the Go runtime's crash report. A log line that
// contains such words does not begin with them.
var crashStart = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: |unexpected fault address )`)

// tail keeps the parts of a worker's stderr that a report may show: its last lines, its
// first lines, and the beginning of a crash report. The first lines are of use because a Go
// program with wrong flags prints the reason before it lists all flags. A crash report
// begins with the reason too, before the stacks of all goroutines.
type tail struct {
	first []string
	count int      // number of all lines
	last  []string // the last lines, as a ring
	next  int      // index of the ring's oldest line
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

// whole returns the first and the last lines, and between them a line that says how many
// lines are left out.
func (t *tail) whole() []string {
	left := t.count - len(t.last)
	if left <= headLines {
		return slices.Concat(t.first[:left], t.lines())
	}
	return slices.Concat(t.first, []string{fmt.Sprintf("... %d more ...", left-headLines)}, t.lines())
}
