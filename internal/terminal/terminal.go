// Package terminal says whether a file is a terminal on which a line can be redrawn in place.
package terminal

import (
	"cmp"
	"os"

	"golang.org/x/sys/unix"
)

// Columns returns the width of the terminal, or 0 if the file is none, or if TERM is "dumb". A terminal that does not know
// its width has 80 columns.
func Columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || os.Getenv("TERM") == "dumb" {
		return 0
	}
	return cmp.Or(int(size.Col), 80)
}
