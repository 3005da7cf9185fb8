package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
)

// A clientConn makes requests on one connection, one at a time.
type clientConn struct {
	nc      net.Conn
	w       *bufio.Writer
	dec     decoder
	dialect dialect
	timeout time.Duration
	// inStep says that every request that was sent has received its whole reply. If not,
	// the connection is of no more use.
	inStep bool
}

// cancelGrace is the time that a call takes to cancel its wait at the server after its
// context has ended. If the server needs longer, the client closes the connection.
const cancelGrace = time.Second

func newClientConn(nc net.Conn, opts *ClientOptions) *clientConn {
	cn := &clientConn{nc: nc, w: bufio.NewWriter(nc), timeout: opts.Timeout}
	if opts.Legacy {
		cn.dialect = dialect1
	}
	cn.dec = decoder{
		r:       bufio.NewReader(nc),
		limits:  opts.Limits,
		reserve: func(int) error { return nil },
	}
	return cn
}

// open starts a connection without a handshake, and checks that a store answers.
func (cn *clientConn) open(ctx context.Context) error {
	if cn.dialect == dialect1 {
		_, err := cn.exchange(ctx, request{op: opNumKeys})
		return err
	}
	return cn.tell(ctx, request{op: opValidate, number: validateMagic})
}

// shakeHands starts a connection with a handshake, instead of open. m identifies this process.
// shakeHands returns the server, or unknownServer if the server lacks the handshake, and another
// process that claims the same rank, if any.
func (cn *clientConn) shakeHands(ctx context.Context, m *Member) (server handshake.Party, rival *handshake.Process, err error) {
	d := handshake.NewDialler(m.party(handshake.StoreClient), m.Secret)
	hello := d.Hello()
	reqs := []request{{op: opValidate, number: validateMagic}, handshakeRequest(hello)}
	if cn.dialect == dialect1 {
		reqs = reqs[1:]
	}
	rep, err := cn.exchange(ctx, reqs...)
	if err != nil {
		return server, nil, err
	}
	answer := rep.values[0]
	if bytes.Equal(answer, hello) {
		return unknownServer, nil, nil
	}
	proof, err := d.Prove(answer)
	if err != nil {
		return server, nil, &HandshakeError{err}
	}
	if rep, err = cn.exchange(ctx, handshakeRequest(proof)); err != nil {
		return server, nil, err
	}
	if rival, err = d.Finish(rep.values[0]); err != nil {
		return server, nil, &HandshakeError{err}
	}
	if m.Secret == nil && !m.Insecure {
		if err := sameUser(cn.nc); errors.As(err, new(*handshake.OtherUserError)) {
			return server, nil, &HandshakeError{fmt.Errorf("the store at this address belongs to another user: %w: give both users the same secret, in the file that %s names", err, jobenv.TokenFileVar)}
		}
	}
	return d.Peer(), rival, nil
}

// exchange sends requests and returns the reply to the last one. The server must answer
// the last one at once, and the others must have no reply.
func (cn *clientConn) exchange(ctx context.Context, reqs ...request) (reply, error) {
	ctx, cancel := awake.WithTimeout(ctx, cn.timeout)
	defer cancel()
	defer cn.watch(ctx)()
	cn.inStep = false
	for _, req := range reqs {
		writeRequest(cn.w, cn.dialect, req)
	}
	if err := cn.w.Flush(); err != nil {
		return reply{}, err
	}
	rep, err := cn.dec.reply(reqs[len(reqs)-1])
	cn.inStep = err == nil
	return rep, err
}

// tell sends the request req, which has no reply, followed by a request that has a reply. This reply
// shows that the server has performed req. So requests that other connections send after tell has
// returned come later, and tell detects if the server rejects req.
func (cn *clientConn) tell(ctx context.Context, req request) error {
	_, err := cn.exchange(ctx, req, request{op: opNumKeys})
	return err
}

func (cn *clientConn) check(ctx context.Context, keys []string) (bool, error) {
	rep, err := cn.exchange(ctx, request{op: opCheck, keys: keys})
	return rep.number == checkReady, err
}

// wait sends a WAIT and waits for its reply. If ctx ends before, it cancels the request, so
// that the connection can still be used.
func (cn *clientConn) wait(ctx context.Context, keys []string) error {
	req := request{op: opWait, keys: keys}
	cn.inStep = false
	unwatch := cn.watch(ctx)
	writeRequest(cn.w, cn.dialect, req)
	err := cn.w.Flush()
	sent := err == nil
	var rep reply
	if sent {
		rep, err = cn.dec.reply(req)
	}
	unwatch()
	switch {
	case err == nil && rep.number != stopWaiting:
		return fmt.Errorf("the server answered WAIT with the unexpected code %d", rep.number)
	case err == nil:
		cn.inStep = true
	case sent && ctx.Err() != nil && cn.dialect == dialect2:
		cn.inStep = cn.cancelWait(context.WithoutCancel(ctx)) == nil
	}
	return err
}

// cancelWait sends a CANCEL_WAIT and reads its reply. If the server has answered the WAIT
// already, that reply comes first.
func (cn *clientConn) cancelWait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	defer cn.watch(ctx)()
	req := request{op: opCancelWait}
	writeRequest(cn.w, cn.dialect, req)
	if err := cn.w.Flush(); err != nil {
		return err
	}
	rep, err := cn.dec.reply(req)
	if err == nil && rep.number == stopWaiting {
		rep, err = cn.dec.reply(req)
	}
	if err == nil && rep.number != waitCanceled {
		err = fmt.Errorf("the server answered CANCEL_WAIT with the unexpected code %d", rep.number)
	}
	return err
}

// watch makes reads and writes on the connection fail when ctx ends, until unwatch is
// called.
func (cn *clientConn) watch(ctx context.Context) (unwatch func()) {
	failed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(failed)
		cn.nc.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-failed
		}
		cn.nc.SetDeadline(time.Time{})
	}
}
