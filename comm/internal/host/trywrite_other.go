//go:build !unix

package host

import "net"

// tryWrite writes nothing, because this system has no non-blocking write.
func tryWrite(net.Conn, []byte) int { return 0 }
