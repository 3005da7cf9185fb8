//go:build !linux && !darwin

package handshake

import (
	"errors"
	"net"
	"runtime"
)

// overflowUID returns a uid that no process has.
func overflowUID() uint32 { return ^uint32(0) }

func mapsAllUsers() bool { return true }

func unixPeer(*net.UnixConn) (uint32, error) {
	return 0, errors.New(runtime.GOOS + " does not report the user of a connection")
}

func tcpPeer(*net.TCPConn) (uint32, error) {
	return 0, errors.New(runtime.GOOS + " does not report the user of a connection")
}
