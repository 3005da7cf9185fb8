//go:build !unix

package host

import "net"

// tryWrite writes nothing: this system has no write that does not wait.
func tryWrite(net.Conn, []byte) int { return 0 }
