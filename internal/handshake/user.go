package handshake

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// ErrUserUnknown is wrapped by the error of [SameUser] if the user of the other end cannot be
// determined: it is on another host or in another network namespace, it has closed, or the platform
// has no interface for it.
var ErrUserUnknown = errors.New("the user at the other end is unknown")

// An OtherUserError says that the other end belongs to another user than this
// process.
type OtherUserError struct {
	Peer, Own uint32 // uids, as this process's user namespace numbers them
	// Unmapped reports whether Peer is the overflow uid, which represents every user that this
	// process's user namespace does not map.
	Unmapped bool
}

func (e *OtherUserError) Error() string {
	if e.Unmapped {
		return fmt.Sprintf("the process at the other end belongs to uid %d, which stands for users outside of this user namespace; want uid %d, as this process", e.Peer, e.Own)
	}
	return fmt.Sprintf("the process at the other end belongs to uid %d, but this process to uid %d", e.Peer, e.Own)
}

// SameUser returns nil if the process at the other end of conn belongs to the
// effective user of this process. Otherwise its error is an *[OtherUserError] or
// wraps [ErrUserUnknown]. conn is a *net.TCPConn or a *net.UnixConn. SameUser reads
// nothing from conn and returns within a second.
func SameUser(conn net.Conn) error {
	var (
		peer uint32
		err  error
	)
	switch c := conn.(type) {
	case *net.TCPConn:
		peer, err = tcpPeer(c)
	case *net.UnixConn:
		peer, err = unixPeer(c)
	default:
		err = fmt.Errorf("a connection of type %T", conn)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUserUnknown, err)
	}
	self, unmapped := uint32(os.Geteuid()), peer == overflowUID() && !mapsAllUsers()
	if peer != self || unmapped {
		return &OtherUserError{Peer: peer, Own: self, Unmapped: unmapped}
	}
	return nil
}

// CheckOwnUser returns an error if [SameUser] can recognize no process as one of this
// process's user, because all users that its namespace does not map have the same uid.
func CheckOwnUser() error {
	if self := os.Geteuid(); uint32(self) == overflowUID() && !mapsAllUsers() {
		return fmt.Errorf("this process runs as uid %d, which in this user namespace also stands for every user outside of it", self)
	}
	return nil
}

// control runs f on the file descriptor of c.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); ctlErr != nil {
		return ctlErr
	}
	return err
}
