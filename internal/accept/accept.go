// Package accept accepts the connections of a listener.
package accept

import (
	"errors"
	"net"
	"time"
)

// pause is the time between a failure to accept a connection and the next attempt.
const pause = 10 * time.Millisecond

// Each calls serve for each connection that ln accepts, one after the other, until ln or done is closed. A
// failure, such as that no file descriptor is free, may be temporary: Each pauses and tries again.
func Each(ln net.Listener, done <-chan struct{}, serve func(net.Conn)) {
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
		case <-time.After(pause):
		case <-done:
			return
		}
	}
}
