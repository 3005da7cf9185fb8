package poll

import (
	"time"

	"golang.org/x/sys/unix"
)

// pause sleeps for about d. time.Sleep would take a millisecond wherever
// nothing else runs: the runtime then waits in epoll, which counts in those.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&t, nil) // a signal ends it early: then the caller asks early
}
