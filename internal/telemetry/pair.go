package telemetry

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pair makes the channel of one worker. The agent reads datagrams of at most [MaxDatagram] bytes from ours. The worker
// inherits theirs. The end of the worker does not end ours.
func Pair() (ours net.Conn, theirs *os.File, err error) {
	// No process may be started before the descriptors are marked close-on-exec.
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry: socketpair: %w", err)
	}
	own := os.NewFile(uintptr(fds[0]), "reports")
	theirs = os.NewFile(uintptr(fds[1]), "reports")
	ours, err = net.FileConn(own) // a copy of the descriptor
	own.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("telemetry: %w", err)
	}
	return ours, theirs, nil
}
