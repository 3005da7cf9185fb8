package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/rootcause"
)

// A connection between two ranks starts with package handshake's handshake, in which each rank proves that
// it belongs to the group. Ranks that share memory then exchange the file descriptors of their shared
// regions, on the connection for frames: first the dialler's, then the listener's. Each side maps the
// region before it answers. At the end of every handshake the dialler sends ackByte.
const ackByte = 0x06

// Limits of a listener for unauthenticated dialers. A dialer waits for a listener until the bootstrap times
// out. If a listener closes its connection, it dials again after dialPause.
const (
	handshakeTimeout = 10 * time.Second
	maxHandshakes    = 256
	dialPause        = 100 * time.Millisecond
)

// connectTimeout is the timeout of a connection to one of a peer's addresses. The kernel of a reachable
// host accepts it, however busy the peer is.
const connectTimeout = 10 * time.Second

// maxDials is the maximum number of peers that a rank dials at a time. More would only wait for each other,
// possibly beyond the limits for unauthenticated dialers.
const maxDials = 16

// accept serves a listener until the bootstrap ends. It drops connections that fail to prove that they have
// the group's key.
func (b *bootstrap) accept(l net.Listener, unix bool) {
	b.wg.Go(func() {
		<-b.done
		l.Close()
	})
	b.wg.Go(func() {
		slots := make(chan struct{}, maxHandshakes)
		joining := make(chan acceptedConn)
		b.wg.Go(func() { b.assemblePeers(joining, connCount(unix)) })
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // temporary, such as too many open files
				select {
				case <-time.After(10 * time.Millisecond):
					continue
				case <-b.done:
					return
				}
			}
			slots <- struct{}{}
			b.wg.Go(func() {
				defer func() { <-slots }()
				a, err := b.acceptConn(c, unix)
				if err != nil {
					b.group.log.Debug("dropped a connection", "rank", b.group.cfg.Rank, "from", c.RemoteAddr(), "error", err)
					if a.conn != nil {
						c = a.conn
					}
					c.Close()
					return
				}
				select {
				case joining <- a:
				case <-b.done:
					c.Close()
				}
			})
		}
	})
}

// acceptedConn is a connection whose handshake is complete.
type acceptedConn struct {
	conn        net.Conn
	peer, index int
	region      *mapping
}

// connCount returns the number of connections to a peer: over unix sockets one more than over TCP.
func connCount(unix bool) int {
	if unix {
		return numConns
	}
	return numDataConns
}

// assemblePeers collects the n connections of each peer that dials a listener. If a dialer fails and dials
// again, its latest connections are used.
func (b *bootstrap) assemblePeers(joining <-chan acceptedConn, n int) {
	peers := map[int]*peerConn{}
	defer func() {
		for _, l := range peers {
			l.close()
		}
	}()
	for {
		select {
		case a := <-joining:
			l := peers[a.peer]
			if l == nil {
				l = newPeerConn(a.peer)
				peers[a.peer] = l
			}
			if old := l.conns[a.index]; old != nil {
				old.Close()
			}
			l.conns[a.index] = a.conn
			if a.index == shmConn {
				l.region = a.region
			}
			if slices.Contains(l.conns[:n], nil) {
				continue
			}
			select {
			case b.incoming <- l:
				delete(peers, a.peer)
			case <-b.done:
				return
			}
		case <-b.done:
			return
		}
	}
}

// party describes this rank for the handshake of one connection.
func (b *bootstrap) party(role handshake.Role, index int) handshake.Party {
	g := b.group
	by := &g.opts.Member
	return handshake.Party{
		Role: role, Job: by.Job, HasSecret: by.Secret != nil, Rank: g.cfg.Rank, Process: handshake.ThisProcess(),
		ConnIndex: index, Machine: b.machine, Unprotected: g.opts.Unprotected,
	}
}

// checkUser returns an error if c's other end is a process of another user and the job has no secret for
// authentication.
func (b *bootstrap) checkUser(c net.Conn) error {
	if by := &b.group.opts.Member; by.Secret != nil || by.Insecure {
		return nil
	}
	if err := handshake.SameUser(c); errors.As(err, new(*handshake.OtherUserError)) {
		return fmt.Errorf("%w: ranks of different users need the same secret in %s", err, jobenv.TokenFileVar)
	}
	return nil
}

// acceptConn is the listener's side of a handshake. The returned acceptedConn may hold a connection
// that wraps c, even if there is an error; the caller must close that one.
func (b *bootstrap) acceptConn(c net.Conn, unix bool) (a acceptedConn, err error) {
	c.SetDeadline(time.Now().Add(handshakeTimeout))
	stop := b.interruptWhenDone(c)
	defer func() { stop() }()
	if err := b.checkUser(c); err != nil {
		return a, err
	}
	if unix {
		c = wrapUnix(c)
	}
	a.conn = c
	if err := setTCPOptions(c); err != nil {
		return a, err
	}
	c, p, err := handshake.Accept(c, b.party(handshake.PeerListener, 0), b.key, nil)
	if err != nil {
		return a, err
	}
	a.conn = c
	stop() // the dialer is authenticated: from now on only the bootstrap's timeout applies
	stop = b.interruptWhenDone(c)
	a.peer, a.index = p.Rank, p.ConnIndex
	if a.peer <= b.group.cfg.Rank || a.peer >= b.group.cfg.Size || a.index >= connCount(unix) {
		return a, fmt.Errorf("unexpected connection %[2]d of rank %[1]d", a.peer, a.index)
	}
	if unix && a.index == shmConn {
		if err := readAck(c); err != nil {
			return a, err
		}
		if a.region, err = b.mapRegion(c); err != nil {
			return a, err
		}
		fd, _ := b.shm.descriptor()
		if err := writeFD(c, []byte{ackByte}, fd); err != nil {
			return a, err
		}
	}
	return a, readAck(c)
}

// interruptWhenDone makes reads and writes on c fail when the bootstrap ends, until stop is called. stop
// removes the deadline of c.
func (b *bootstrap) interruptWhenDone(c net.Conn) (stop func()) {
	stopped := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-b.done:
			c.SetDeadline(time.Unix(1, 0))
		case <-stopped:
			c.SetDeadline(time.Time{})
		}
	}()
	return func() {
		close(stopped)
		<-finished
	}
}

// mapRegion maps the shared region whose file descriptor was received last.
func (b *bootstrap) mapRegion(c net.Conn) (*mapping, error) {
	fd, ok := takeFD(c)
	if !ok {
		return nil, errors.New("no file descriptor was received")
	}
	_, size := b.shm.descriptor()
	return mapFD(fd, size)
}

func readAck(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if b[0] != ackByte {
		return fmt.Errorf("the peer answered the handshake with the byte %#x", b[0])
	}
	return nil
}

// dialPeer connects to a lower rank. It uses unix sockets and shared memory if possible on one host, else
// TCP.
func (b *bootstrap) dialPeer(ctx context.Context, peer int, self, at address) (*peerConn, error) {
	why := fmt.Errorf("rank %d at %v", peer, at.TCP)
	separator := ": "
	try := func(network, addr string) (l *peerConn, err error) {
		if l, err = b.dialConns(ctx, peer, network, addr); err != nil {
			why, separator = fmt.Errorf("%w%s%w", why, separator, err), "; "
		}
		return l, err
	}
	if b.shm != nil && self.Host == at.Host && at.Unix != "" {
		l, err := try("unix", at.Unix)
		if err == nil {
			return l, nil
		}
		b.noteUnshared(peer, err)
	}
	for _, a := range at.TCP {
		if l, err := try("tcp", a); err == nil {
			return l, nil
		}
	}
	return nil, why
}

// noteUnshared records that a peer on this host does not share memory with this rank.
func (b *bootstrap) noteUnshared(peer int, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unshared, b.unsharedReason = append(b.unshared, peer), why
}

// warnOfUnshared logs one line about the peers on this host that do not share memory with this rank.
func (b *bootstrap) warnOfUnshared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.unshared); n > 0 {
		slices.Sort(b.unshared)
		b.group.log.Warn("no shared memory with ranks of this host: using TCP", "rank", b.group.cfg.Rank, "count", n, "peers", rootcause.Ranks(b.unshared), "error", b.unsharedReason)
	}
}

func (b *bootstrap) dialConns(ctx context.Context, peer int, network, at string) (*peerConn, error) {
	l := newPeerConn(peer)
	for index := range connCount(network == "unix") {
		err := b.dialConn(ctx, l, index, network, at)
		for errors.As(err, new(*crowdedError)) && sleep(ctx, dialPause) {
			if c := l.conns[index]; c != nil {
				c.Close()
			}
			err = b.dialConn(ctx, l, index, network, at)
		}
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// sleep returns true after d, or false when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// crowdedError reports that a listener was full, or closed the connection before the dialer was
// authenticated. Dialing again may succeed.
type crowdedError struct{ error }

func (e *crowdedError) Unwrap() error { return e.error }

// dialConn is the dialer's side of a handshake. Its error may be a [*crowdedError].
func (b *bootstrap) dialConn(ctx context.Context, l *peerConn, index int, network, at string) error {
	dial := b.group.opts.dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	c, err := dial(ctx, network, at)
	if errors.Is(err, syscall.EAGAIN) { // a unix socket's backlog is full
		return &crowdedError{err}
	}
	if err != nil {
		return err
	}
	user := b.checkUser(c)
	if network == "unix" {
		c = wrapUnix(c)
	}
	l.conns[index] = c
	if user != nil {
		return user
	}
	defer b.interruptWhenDone(c)()
	if err := setTCPOptions(c); err != nil {
		return err
	}
	c, p, err := handshake.Dial(c, b.party(handshake.PeerDialler, index), b.key)
	if err != nil {
		if handshake.IsHangUp(err) {
			err = &crowdedError{fmt.Errorf("the connection ended during the handshake: %w", err)}
		}
		return err
	}
	l.conns[index] = c
	if p.Rank != l.peer {
		return fmt.Errorf("rank %d answered, want rank %d", p.Rank, l.peer)
	}
	if network == "unix" && index == shmConn {
		fd, _ := b.shm.descriptor()
		if err := writeFD(c, []byte{ackByte}, fd); err != nil {
			return err
		}
		if err := readAck(c); err != nil {
			return err
		}
		if l.region, err = b.mapRegion(c); err != nil {
			return err
		}
	}
	_, err = c.Write([]byte{ackByte})
	return err
}

// setTCPOptions enables detection of a lost host, and disables Nagle's algorithm.
func setTCPOptions(c net.Conn) error {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	err := t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silence / 4, Interval: silence / 4, Count: 3})
	return errors.Join(err, t.SetNoDelay(true))
}
