//go:build !linux

package coordinator

import (
	"errors"
	"net"
	"time"
)

// setUserTimeout does nothing: the kernel's own timeout applies.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }

// unread returns an error, because this operating system does not say whether there is unread input.
func unread(*net.TCPConn) (bool, error) { return false, errors.ErrUnsupported }

// awaitInput returns at once. The caller's next read waits for input.
func awaitInput(*net.TCPConn) error { return nil }
