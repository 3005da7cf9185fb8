package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback has the disk start to write n bytes of a file, and does not wait. Where it
// cannot, Sync does it all.
func startWriteback(f *os.File, from, n int64) {
	unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}
