package rendezvous

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/goddp/goddp/internal/wire"
)

// DialOptions are what an agent needs to join the rendezvous of another process.
type DialOptions struct {
	Addr       string // the address of the host, host:port
	Identity   *Identity
	Node       NodeInfo
	Limits     Limits
	MasterPort int
	Heartbeat  time.Duration // the time between two heartbeats, the same as on the host
}

// Remote is the session of an agent with a host in another process.
type Remote struct {
	*Session
	mux  *yamux.Session
	wg   sync.WaitGroup
	done chan struct{} // closed when no more orders come
	// received counts the messages of the host.
	received atomic.Int64
	silent   atomic.Bool // the connection was ended because the host was silent
}

// Dial connects an agent with the host of the rendezvous and joins. ctx bounds the connection alone. Unless
// the error is a *HandshakeError, dialling again can help.
func Dial(ctx context.Context, o DialOptions) (*Remote, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", o.Addr)
	if err != nil {
		if errors.Is(err, context.Canceled) { // ctx ended
			err = errNoAnswer
		}
		return nil, err
	}
	c, start := tls.Client(raw, o.Identity.Config()), time.Now()
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		if ctx.Err() != nil {
			return nil, &muteError{time.Since(start)}
		}
		err = describeHandshake(err)
		if errors.Is(err, errOtherToken) || errors.Is(err, errNoTLS) || errors.Is(err, errTCPStore) {
			return nil, &HandshakeError{o.Addr, err}
		}
		return nil, err
	}
	mux, err := yamux.Client(c, muxConfig())
	if err != nil {
		c.Close()
		return nil, err
	}
	control, err := mux.Open()
	if err != nil {
		mux.Close()
		return nil, err
	}
	r := &Remote{Session: newSession(o.Node.Workers), mux: mux, done: make(chan struct{})}
	heartbeat := cmp.Or(o.Heartbeat, DefaultHeartbeat)
	box := wire.NewOutbox(maxPending)
	r.send = func(m *toHost) { box.Put(wire.Encode(m)) }
	r.cut, r.open = func() { mux.Close() }, r.Open
	r.send(&toHost{Join: &joinMessage{o.Node, o.Limits, o.MasterPort}}) // the first message
	r.wg.Go(func() {
		box.Run(control)
		mux.Close()
	})
	r.wg.Go(func() {
		defer close(r.done)
		defer box.Close()
		err := r.listen(control)
		switch {
		case errors.As(err, new(*RefusedError)):
		case r.silent.Load():
			err = &HostLostError{o.Addr, fmt.Errorf("no heartbeat for %v", missedBeats*heartbeat)}
		case errors.Is(err, io.EOF):
			err = &HostLostError{o.Addr, errAgentEnded}
		default:
			err = &HostLostError{o.Addr, err}
		}
		r.put(Order{Err: err})
	})
	r.wg.Go(func() { r.beatUntilDone(heartbeat) })
	return r, nil
}

// listen handles the host's messages until the connection ends.
func (r *Remote) listen(control io.Reader) error {
	in := bufio.NewReader(control)
	for {
		m := &toAgent{}
		if err := wire.Decode(in, maxMessage, m); err != nil {
			return err
		}
		r.received.Add(1)
		if err := r.receive(m); err != nil {
			return err
		}
	}
}

// beatUntilDone sends heartbeats, and ends the connection with a host that is silent.
func (r *Remote) beatUntilDone(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	silence, received := 0, int64(0)
	for r.beat(); ; r.beat() {
		select {
		case <-ticker.C:
		case <-r.done:
			return
		}
		if silence++; r.received.Load() != received {
			silence, received = 0, r.received.Load()
		}
		if silence >= missedBeats {
			r.silent.Store(true)
			r.mux.Close()
		}
	}
}

// errAgentEnded says that a process closed its connection in order. If a process is killed, its kernel closes the
// connection in the same way.
var errAgentEnded = errors.New("its agent ended")

// HostLostError says that the connection with the host of the rendezvous has ended.
type HostLostError struct {
	Addr string
	Err  error
}

func (e *HostLostError) Error() string {
	return fmt.Sprintf("the host of the rendezvous, %s, is lost: %v", e.Addr, e.Err)
}

func (e *HostLostError) Unwrap() error { return e.Err }

// errNoAnswer is the error of an attempt that got no answer in its time.
var errNoAnswer = errors.New("no answer")

// muteError says that the process at an address accepted the connection and did not answer.
type muteError struct{ took time.Duration }

func (e *muteError) Error() string {
	return fmt.Sprintf("it accepted the connection but did not answer within %v", e.took.Round(100*time.Millisecond))
}

// HandshakeError says that the process at an address does not host this job's rendezvous. Dialling again
// does not help.
type HandshakeError struct {
	Addr string
	Err  error
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("%s is not the host of this job's rendezvous: %v", e.Addr, e.Err)
}

func (e *HandshakeError) Unwrap() error { return e.Err }

// Open connects with a service of the current round.
func (r *Remote) Open(to service) (net.Conn, error) {
	stream, err := r.mux.Open()
	if err != nil {
		return nil, err
	}
	if _, err := stream.Write([]byte{byte(to)}); err != nil {
		stream.Close()
		return nil, err
	}
	return stream, nil
}

// Close ends the session and waits for its goroutines.
func (r *Remote) Close() {
	r.Session.Close()
	r.wg.Wait()
}
