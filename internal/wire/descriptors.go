package wire

import (
	"fmt"
	"math"
	"syscall"
)

// A process divides its file descriptors into fileShares equal shares: one for each of the four classes of a
// store's connections, and one for everything else.
const fileShares = 5

// FilesRemedy is the advice for a process that may open too few files.
const FilesRemedy = "raise its limit (ulimit -n)"

// FileLimit returns the number of files that this process may open.
func FileLimit() uint64 {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return math.MaxUint64
	}
	return files.Cur
}

// ShareFiles returns how many of the given number of connections fit into one share. why is "" if all
// fit. Otherwise it is the reason, which names process, for the error of a rejected connection.
func ShareFiles(connections int, process string) (fit int, why string) {
	files := FileLimit()
	if most := files / fileShares; uint64(connections) > most {
		return int(most), fmt.Sprintf(": %s may open %d files: %s", process, files, FilesRemedy)
	}
	return connections, ""
}
