package coordinator

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A message is sent as the length of its JSON encoding, in four bytes, followed by that encoding.

// maxMessage is the largest size of a message in bytes. The largest messages hold the values of
// many ranks.
const maxMessage = 64 << 20

// readSize is the size of the read buffer in bytes. Most messages fit into it. Larger messages, for
// example those with the values of many ranks, need several reads.
const readSize = 1 << 10

// encode returns the encoding of a message.
func encode(m *Message) []byte {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // a Message can always be encoded
	}
	return append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text))), text...)
}

// decode reads a message. It returns an error if the message has more than `most` bytes.
func decode(r io.Reader, most int) (*Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if int64(n) > int64(most) {
		return nil, fmt.Errorf("message of %d bytes, at most %d", n, most)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	m := &Message{}
	return m, json.Unmarshal(text, m)
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

// outbox is the queue of messages that are to be written on a connection. Senders never block.
type outbox struct {
	mu     sync.Mutex
	queue  net.Buffers
	bytes  int
	closed bool
	wake   chan struct{} // capacity 1; a value wakes the goroutine in run
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// put adds a message to the queue. It returns false if the queue is full, because the other end
// reads too slowly.
func (o *outbox) put(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes += len(b); o.bytes > 2*maxMessage {
		return false
	}
	o.queue = append(o.queue, b)
	o.signal()
	return true
}

// close makes run return when run has written all messages in the queue.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run writes the messages in the queue. It returns an error if a write fails. After close, run writes
// the rest of the queue and returns nil.
func (o *outbox) run(c net.Conn) error {
	for {
		o.mu.Lock()
		queue, closed := o.queue, o.closed
		o.queue, o.bytes = nil, 0
		o.mu.Unlock()
		switch {
		case len(queue) > 0:
			if _, err := queue.WriteTo(c); err != nil {
				return err
			}
		case closed:
			return nil
		default:
			<-o.wake
		}
	}
}
