//go:build !linux

package host

import (
	"errors"
	"net"
)

// Ranks share memory only on Linux. On other systems they use TCP.

type mapping struct{ mem []byte }

func newSharedMemory(*Group) (sharedMemory, error) { return nil, errors.ErrUnsupported }

func mapFD(int, int) (*mapping, error) { return nil, errors.ErrUnsupported }

func wrapUnix(c net.Conn) net.Conn { return c }

func writeFD(net.Conn, []byte, int) error { return errors.ErrUnsupported }

func takeFD(net.Conn) (fd int, ok bool) { return -1, false }
