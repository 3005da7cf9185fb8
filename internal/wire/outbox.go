package wire

import (
	"net"
	"sync"
)

// Outbox is the queue of messages that are to be written on a connection. Senders never block.
type Outbox struct {
	limit int // number of bytes that may wait

	mu     sync.Mutex
	queue  net.Buffers
	bytes  int
	closed bool
	wake   chan struct{} // capacity 1: wakes Run
}

// NewOutbox returns an empty queue in which at most limit bytes can wait.
func NewOutbox(limit int) *Outbox { return &Outbox{limit: limit, wake: make(chan struct{}, 1)} }

// Put adds an encoded message. It returns false if the other end reads too slowly.
func (o *Outbox) Put(b []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes += len(b); o.bytes > o.limit {
		return false
	}
	o.queue = append(o.queue, b)
	o.signal()
	return true
}

// Close makes Run return once all messages are written.
func (o *Outbox) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signal()
}

func (o *Outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Run writes messages until Close is called, and then returns nil, or until a write fails.
func (o *Outbox) Run(c net.Conn) error {
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
