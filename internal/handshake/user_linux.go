package handshake

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// overflowUID returns the uid that represents unmapped users.
var overflowUID = sync.OnceValue(func() uint32 {
	text, _ := os.ReadFile("/proc/sys/kernel/overflowuid") // empty where there is no /proc
	if uid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
		return uint32(uid)
	}
	return 65534
})

// mapsAllUsers reports whether this process's user namespace maps all users, so that the overflow
// uid is an ordinary user.
var mapsAllUsers = sync.OnceValue(func() bool {
	text, _ := os.ReadFile("/proc/self/uid_map") // empty where there is no /proc
	return isWholeMap(string(text))
})

// isWholeMap reports whether the content of a uid_map is one line that maps all users.
func isWholeMap(text string) bool {
	fields := strings.Fields(text)
	return len(fields) == 3 && fields[0] == "0" && fields[2] == "4294967295"
}

func unixPeer(c *net.UnixConn) (uid uint32, err error) {
	err = control(c, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return os.NewSyscallError("getsockopt SO_PEERCRED", err)
		}
		uid = cred.Uid
		return nil
	})
	return uid, err
}

const tcpEstablished = 1 // TCP_ESTABLISHED of linux/tcp_states.h

// tcpPeer returns the user of the far end of c. It checks the near end after the far
// end: see the package comment.
func tcpPeer(c *net.TCPConn) (uint32, error) {
	near, far := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	zone := 0
	if far.Zone != "" {
		i, err := net.InterfaceByName(far.Zone)
		if err != nil {
			return 0, err
		}
		zone = i.Index
	}
	s, err := findSocket(addrPort(far), addrPort(near), zone)
	if err != nil {
		return 0, err
	}
	if s.state != tcpEstablished || s.inode == 0 {
		return 0, fmt.Errorf("the socket of %v has state %d and inode %d: it is closed, or about to be", far, s.state, s.inode)
	}
	err = control(c, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return os.NewSyscallError("getsockopt TCP_INFO", err)
		}
		if info.State != tcpEstablished {
			return fmt.Errorf("%v has closed the connection, which has state %d", far, info.State)
		}
		return nil
	})
	return s.uid, err
}

func addrPort(a *net.TCPAddr) netip.AddrPort {
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// A socket is the kernel's description of a socket.
type socket struct {
	state      uint8
	uid, inode uint32
}

// Sizes and places in linux/inet_diag.h.
const (
	requestSize = 56 // struct inet_diag_req_v2
	replySize   = 72 // struct inet_diag_msg
	requestID   = 8  // struct inet_diag_sockid in the request
	replyID     = 4  // and in the reply
	idDst       = 20 // the far address in the sockid, after both ports and the near address
	idInterface = 36
	idCookie    = 40
	idSize      = 48
	replyUID    = replyID + idSize + 12
	replyInode  = replyUID + 4
)

const netlinkTimeout = time.Second

// findSocket returns the TCP socket of this network namespace whose own end is
// src and whose other end is dst.
func findSocket(src, dst netip.AddrPort, zone int) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return socket{}, os.NewSyscallError("socket NETLINK_SOCK_DIAG", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &timeout); err != nil {
			return socket{}, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Sendto(fd, request(src, dst, zone), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return socket{}, os.NewSyscallError("sendto NETLINK_SOCK_DIAG", err)
	}
	var buf [1024]byte
	for {
		n, from, err := unix.Recvfrom(fd, buf[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return socket{}, os.NewSyscallError("recvfrom NETLINK_SOCK_DIAG", err)
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
			continue // not from the kernel
		}
		return parseReply(buf[:n], src, dst)
	}
}

// request asks for the one socket between src and dst.
func request(src, dst netip.AddrPort, zone int) []byte {
	e := binary.NativeEndian
	b := make([]byte, unix.SizeofNlMsghdr+requestSize)
	e.PutUint32(b, uint32(len(b)))
	e.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	e.PutUint16(b[6:], unix.NLM_F_REQUEST)
	req := b[unix.SizeofNlMsghdr:]
	req[0], req[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if src.Addr().Is4() {
		req[0] = unix.AF_INET
	}
	e.PutUint32(req[4:], 1<<tcpEstablished)
	id := req[requestID:]
	binary.BigEndian.PutUint16(id, src.Port())
	binary.BigEndian.PutUint16(id[2:], dst.Port())
	copy(id[4:], src.Addr().AsSlice())
	copy(id[idDst:], dst.Addr().AsSlice())
	e.PutUint32(id[idInterface:], uint32(zone))
	e.PutUint64(id[idCookie:], ^uint64(0)) // no cookie
	return b
}

// parseReply decodes the kernel's answer to request. If no connection matches, the
// kernel answers with a socket that listens on src's port. So parseReply accepts only
// a socket with exactly the addresses src and dst.
func parseReply(b []byte, src, dst netip.AddrPort) (socket, error) {
	e := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+4 {
		return socket{}, fmt.Errorf("NETLINK_SOCK_DIAG returned an unexpected answer of %d bytes", len(b))
	}
	kind, body := e.Uint16(b[4:]), b[unix.SizeofNlMsghdr:]
	if kind == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(e.Uint32(body)))
		if errno == unix.ENOENT {
			return socket{}, notFound(src, dst)
		}
		return socket{}, os.NewSyscallError("NETLINK_SOCK_DIAG", errno)
	}
	if kind != unix.SOCK_DIAG_BY_FAMILY || len(body) < replySize {
		return socket{}, fmt.Errorf("NETLINK_SOCK_DIAG returned an unexpected answer of type %d and %d bytes", kind, len(b))
	}
	id := body[replyID:]
	size := 16
	if body[0] == unix.AF_INET {
		size = 4
	}
	end := func(port, addr []byte) netip.AddrPort {
		a, _ := netip.AddrFromSlice(addr[:size])
		return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(port))
	}
	if s, d := end(id, id[4:]), end(id[2:], id[idDst:]); s != src || d != dst {
		return socket{}, notFound(src, dst)
	}
	return socket{state: body[1], uid: e.Uint32(body[replyUID:]), inode: e.Uint32(body[replyInode:])}, nil
}

func notFound(src, dst netip.AddrPort) error {
	return fmt.Errorf("no socket of this host is connected from %v to %v", src, dst)
}
