package host

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostKey names what processes must have in common to share memory: the boot
// of the kernel, and the network namespace, in which abstract sockets live.
func hostKey() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	netns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s", strings.TrimSpace(string(boot)), netns), nil
}

// watch makes the kernel give a connection up when the peer's host has not
// acknowledged data for as long.
func watch(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	err = raw.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence/time.Millisecond))
	})
	if err != nil {
		return err
	}
	return opt
}
