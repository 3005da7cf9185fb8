package jobenv

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Columns returns the value of [ColumnsVar] for a worker whose stderr is a pipe on which a line has the given number of columns.
func Columns(columns int, pipe *os.File) string {
	return fmt.Sprintf("%d:%d", columns, inode(pipe))
}

// ColumnsOf returns the number of columns that golaunch has given to a file, or 0. A program in a shell within the worker
// inherits the variable, but may have another pipe.
func ColumnsOf(f *os.File) int {
	var columns int
	var pipe uint64
	if _, err := fmt.Sscanf(os.Getenv(ColumnsVar), "%d:%d", &columns, &pipe); err != nil || pipe == 0 || pipe != inode(f) {
		return 0
	}
	return columns
}

// inode identifies an open pipe; 0: the file is none.
func inode(f *os.File) uint64 {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFIFO {
		return 0
	}
	return s.Ino
}
