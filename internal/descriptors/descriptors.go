// Package descriptors divides the file descriptors of a process, so that servers of
// connections leave some to the rest of the process.
package descriptors

import (
	"fmt"
	"math"
	"syscall"
)

// parts is the number of shares of the file descriptors. A store takes one share for each of
// its four classes of connections.
const parts = 5

// Remedy is the advice for a process that may open too few files.
const Remedy = "raise its limit (ulimit -n)"

// Limit returns the number of files that this process may open.
func Limit() uint64 {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return math.MaxUint64
	}
	return files.Cur
}

// Share returns how many of the given number of connections fit into one share. why is "" if all
// fit. Otherwise it is the reason, which names process, for the error of a rejected connection.
func Share(connections int, process string) (fit int, why string) {
	files := Limit()
	if most := files / parts; uint64(connections) > most {
		return int(most), fmt.Sprintf(": %s may open %d files: %s", process, files, Remedy)
	}
	return connections, ""
}
