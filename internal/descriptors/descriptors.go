// Package descriptors shares out the files that a process may open, so that what serves
// connections leaves some to the rest of the process.
package descriptors

import (
	"fmt"
	"math"
	"syscall"
)

// parts is into how many shares the files are divided. A store takes one for each of its four
// kinds of connections.
const parts = 5

// Remedy is what helps who may not open enough files.
const Remedy = "raise its limit (ulimit -n)"

// Limit is how many files this process may open.
func Limit() uint64 {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return math.MaxUint64
	}
	return files.Cur
}

// Share returns how many of these connections fit into a share of the files. why is for the error of
// a connection that is refused, and names the process. It is "" if all fit.
func Share(connections int, process string) (fit int, why string) {
	files := Limit()
	if most := files / parts; uint64(connections) > most {
		return int(most), fmt.Sprintf(": %s may open %d files: %s", process, files, Remedy)
	}
	return connections, ""
}
