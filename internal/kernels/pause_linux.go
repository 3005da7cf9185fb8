package kernels

import (
	"time"

	"golang.org/x/sys/unix"
)

// pause sleeps for about d. time.Sleep takes at least a millisecond if no other goroutine
// runs, because the runtime then waits in epoll, whose timeout counts milliseconds.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&t, nil) // a signal may end it early, which is harmless
}
