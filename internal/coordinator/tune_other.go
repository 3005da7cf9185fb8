//go:build !linux

package coordinator

import (
	"errors"
	"net"
	"time"
)

// giveUp has nothing to do: the kernel's own limit counts.
func giveUp(*net.TCPConn, time.Duration) error { return nil }

// unread cannot tell what nobody has read.
func unread(*net.TCPConn) (bool, error) { return false, errors.ErrUnsupported }

// awaitInput returns at once: the read that follows waits.
func awaitInput(*net.TCPConn) error { return nil }
