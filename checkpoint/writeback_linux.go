package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback starts writing n bytes of a file to disk and does not wait. If that is not
// possible, Sync writes them later.
func startWriteback(f *os.File, from, n int64) {
	unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}
