package rendezvous

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/wire"
)

// The bounds on what a connection may cost. While more than half of maxHandshakes take place, a new handshake
// must end within crowdedTime, so that strangers who say nothing keep no agent out.
const (
	handshakeTime = 10 * time.Second
	crowdedTime   = 2 * time.Second
	flushTime     = time.Second
	maxHandshakes = 256
	maxMessage    = 1 << 20
	maxPending    = 4 * maxMessage
)

// Serve accepts agents of other processes until the listener or the host is closed. Each agent proves the
// identity of the job. The first stream of an agent's connection carries messages. Each further stream is
// a connection of one of the agent's workers with the store or the coordinator of the current round.
func (h *Host) Serve(ln net.Listener, id *Identity) {
	h.wg.Go(func() {
		<-h.done
		ln.Close()
	})
	h.wg.Go(func() {
		slots := make(chan struct{}, maxHandshakes)
		wire.Accept(ln, h.done, func(c net.Conn) {
			select {
			case slots <- struct{}{}:
			case <-h.done:
				c.Close()
				return
			}
			most := handshakeTime
			if len(slots) > maxHandshakes/2 {
				most = crowdedTime
			}
			h.wg.Go(func() {
				defer c.Close()
				mux, err := h.accept(c, id, most)
				<-slots
				if err != nil {
					h.rejections.Add(c.RemoteAddr().String(), err)
					return
				}
				h.serve(c, mux)
			})
		})
	})
}

// accept performs the handshake with an agent. most bounds the time until the agent has joined.
func (h *Host) accept(c net.Conn, id *Identity, most time.Duration) (*yamux.Session, error) {
	stop := closeWhen(h.done, c)
	defer stop()
	c.SetDeadline(time.Now().Add(most))
	secured := tls.Server(c, id.Config())
	if err := secured.Handshake(); err != nil {
		return nil, describeHandshake(err)
	}
	return yamux.Server(secured, muxConfig())
}

// serve serves an agent after the handshake, until the connection ends. The deadline that accept has set
// bounds the time until the agent's first message, Join. From then on, heartbeats detect a lost agent.
func (h *Host) serve(c net.Conn, mux *yamux.Session) {
	stop := closeWhen(h.done, mux)
	defer stop()
	var streams sync.WaitGroup
	defer streams.Wait()
	defer mux.Close()
	control, err := mux.Accept()
	if err != nil {
		return
	}
	streams.Go(func() { h.forwardAll(mux, &streams) })
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	reached, _, _ := net.SplitHostPort(c.LocalAddr().String())
	box := wire.NewOutbox(maxPending)
	h.mu.Lock()
	h.reached = reached
	h.mu.Unlock()
	p := &peer{addr: host, cut: func() { c.Close() }, reported: time.Now()}
	p.finish = func() { control.SetReadDeadline(time.Now()) } // ends the loop below
	p.send = func(m *toAgent) bool { return box.Put(wire.Encode(m)) }
	written := make(chan struct{})
	streams.Go(func() {
		defer close(written)
		box.Run(control)
	})
	in := bufio.NewReader(control)
	for err == nil {
		m := &toHost{}
		if err = wire.Decode(in, maxMessage, m); err == nil {
			c.SetDeadline(time.Time{})
			err = h.receive(p, m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = errAgentEnded
	}
	h.detach(p, err.Error(), time.Now())
	box.Close()
	// The agent may have to learn why, for example that it is refused. It ends the connection when it has read
	// that. If this end closed the connection first, a heartbeat on the way could reset it before.
	timeout := time.After(flushTime)
	for _, done := range []<-chan struct{}{written, mux.CloseChan()} {
		select {
		case <-done:
		case <-timeout:
			return
		}
	}
}

// muxConfig returns the configuration of the streams of a connection. Heartbeats are the rendezvous' own.
func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.LogOutput = io.Discard
	return c
}

// closeWhen closes c when done is closed, until stop is called.
func closeWhen(done <-chan struct{}, c io.Closer) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-done:
			c.Close()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

// The reasons why a TLS handshake fails.
var (
	errOtherToken = errors.New("it has a different token or a different --rdzv-id")
	errTCPStore   = errors.New("it speaks the protocol of PyTorch's TCPStore: a torchrun agent, or a worker of PyTorch")
	errNoTLS      = errors.New("it does not speak TLS")
	errTimeout    = errors.New("it did not end the handshake in time")
	errHungUp     = errors.New("it ended the connection during the handshake, as torchrun agents do")
)

// describeHandshake says in plain words why a TLS handshake failed.
func describeHandshake(err error) error {
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &record) && len(record.RecordHeader) > 0 && isTCPStore(record.RecordHeader):
		return errTCPStore
	case errors.As(err, &record):
		return errNoTLS
	case errors.Is(err, ErrOtherKey), strings.Contains(err.Error(), "bad certificate"): // crypto/tls has no type for an alert of the peer
		return errOtherToken
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errTimeout
	case handshake.IsHangUp(err):
		return errHungUp
	}
	return err
}

// isTCPStore reports whether a connection starts as one with PyTorch's TCPStore: in version 1 with a
// request about a key, whose length has 8 bytes, in version 2 with a magic number.
func isTCPStore(head [5]byte) bool {
	const requests = 9 // number of request codes of version 1
	return head[0] < requests && head[1] > 0 && [3]byte(head[2:]) == [3]byte{} || head == [5]byte{0, 0xce, 0xf7, 0x85, 0x3c}
}
