package coordinator

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/goddp/goddp/internal/wire"
)

// maxMessage is the largest size of a message in bytes. The largest messages hold the values of
// many ranks.
const maxMessage = 64 << 20

// maxPending is the number of bytes that may wait to be written on a connection.
const maxPending = 2 * maxMessage

// readSize is the size of the read buffer in bytes. Most messages fit into it. Larger messages, for
// example those with the values of many ranks, need several reads.
const readSize = 1 << 10

// decode reads a message. It returns an error if the message has more than maxMessage bytes.
func decode(r io.Reader) (*Message, error) {
	m := &Message{}
	return m, wire.Decode(r, maxMessage, m)
}

// hostSilence is the time after which the kernel ends a connection if the host at the other end
// does not answer.
const hostSilence = 20 * time.Second

// detectDeadHost configures the kernel to end the connection when the host at the other end does
// not answer.
func detectDeadHost(c *net.TCPConn) error {
	err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: hostSilence / 4, Interval: hostSilence / 4, Count: 3})
	return errors.Join(err, setUserTimeout(c, hostSilence))
}
