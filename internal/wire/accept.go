package wire

import (
	"errors"
	"net"
	"time"
)

// acceptPause is the time between a failure to accept a connection and the next attempt.
const acceptPause = 10 * time.Millisecond

// Accept calls serve for each connection that ln accepts, one after the other, until ln or done is closed.
// After a failure, which may be temporary, such as a lack of file descriptors, Accept pauses and tries again.
func Accept(ln net.Listener, done <-chan struct{}, serve func(net.Conn)) {
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			serve(c)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		select {
		case <-time.After(acceptPause):
		case <-done:
			return
		}
	}
}
