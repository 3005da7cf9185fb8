// Package peeruid tells whether the process at the other end of a local
// connection belongs to the user of this process.
//
// [SameUser] is the one question. What it can answer depends on the connection
// and on the platform:
//
//   - Unix sockets: Linux (SO_PEERCRED) and macOS (LOCAL_PEERCRED) name the user
//     of the process that called connect.
//   - TCP on Linux: the kernel is asked for the socket at the other end
//     (NETLINK_SOCK_DIAG), by the exact addresses and ports of both ends. The
//     answer is the user of the process that made the socket.
//   - TCP on macOS and elsewhere: no documented interface names the user of a TCP
//     connection. SameUser returns [ErrUnknown], and the caller must either refuse
//     the connection or ask for a secret.
//
// # What counts as known
//
// A TCP socket counts only while it is established at both ends and while a
// process has it open. A process that sends and closes at once is therefore
// unknown: some kernels report user 0 for a socket that no process has open, and
// its port may already belong to somebody else. Both ends are looked at in
// this order: the far end, then the near end. As long as the near end is
// established, no other socket can take the addresses of the far end, so the
// socket that was found is the one that the near end talks to.
//
// A process in a user namespace sees every user that its namespace does not map
// as the overflow uid (65534). Unless the namespace maps all users, as that of an
// ordinary host does, that uid is never the same user: see [CheckOwn].
//
// A socket that another process inherited, or was handed, keeps the user who
// made it. A program of the same user that forwards connections for others
// (a proxy, ssh -L) answers for them.
package peeruid

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// ErrUnknown is wrapped by the error of [SameUser] if nobody can say whose the
// other end is: the other end is on another host or in another network
// namespace, it has closed, or the platform cannot tell.
var ErrUnknown = errors.New("the user at the other end is unknown")

// An OtherUserError says that the other end belongs to another user than this
// process.
type OtherUserError struct {
	Peer, Own uint32 // uids, as this process's user namespace numbers them
	// Unmapped is whether Peer is the overflow uid, which stands for every user
	// that the user namespace of this process does not map.
	Unmapped bool
}

func (e *OtherUserError) Error() string {
	if e.Unmapped {
		return fmt.Sprintf("the other end belongs to uid %d, which stands for users outside of this user namespace, this process to uid %d", e.Peer, e.Own)
	}
	return fmt.Sprintf("the other end belongs to uid %d, this process to uid %d", e.Peer, e.Own)
}

// SameUser returns nil if the process at the other end of conn belongs to the
// effective user of this process. Otherwise its error is an *[OtherUserError] or
// wraps [ErrUnknown]. conn is a *net.TCPConn or a *net.UnixConn. SameUser reads
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
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	self, unmapped := uint32(os.Geteuid()), peer == overflowUID() && !mapsAllUsers()
	if peer != self || unmapped {
		return &OtherUserError{Peer: peer, Own: self, Unmapped: unmapped}
	}
	return nil
}

// CheckOwn returns an error if [SameUser] can take no process for one of this
// process's user, because users that its namespace does not map have the same uid.
func CheckOwn() error {
	if self := os.Geteuid(); uint32(self) == overflowUID() && !mapsAllUsers() {
		return fmt.Errorf("this process is of uid %d, which in this user namespace also stands for every user outside of it", self)
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
