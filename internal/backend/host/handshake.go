package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/peeruid"
)

// A connection between two ranks is opened by a handshake, in which each proves to the
// other that it belongs to the group. Then, on the connection of a link that is about
// shared memory, the dialler sends the descriptor of its desk, and the listener answers
// with that of its own, each of which the other side has mapped before it answers. The
// dialler ends with accepted, behind which the connection is both ends'.
const accepted = 0x06

// handshakeTimeout bounds a handshake; strangers bounds how many unfinished
// ones are served at a time.
const (
	handshakeTimeout = 10 * time.Second
	strangers        = 256
)

// accept serves a listener until the meeting is over. Whoever does not have the group's
// key is refused.
func (m *meeting) accept(l net.Listener, unix bool) {
	m.wg.Go(func() {
		<-m.done
		l.Close()
	})
	m.wg.Go(func() {
		slots := make(chan struct{}, strangers)
		joining := make(chan arrived)
		m.wg.Go(func() { m.assemble(joining, lanesOver(unix)) })
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, say: there may be some soon
				select {
				case <-time.After(10 * time.Millisecond):
					continue
				case <-m.done:
					return
				}
			}
			slots <- struct{}{}
			m.wg.Go(func() {
				defer func() { <-slots }()
				a, err := m.welcome(c, unix)
				if err != nil {
					m.group.log.Debug("dropped a connection", "rank", m.group.cfg.Rank, "from", c.RemoteAddr(), "error", err)
					if a.conn != nil {
						c = a.conn
					}
					c.Close()
					return
				}
				select {
				case joining <- a:
				case <-m.done:
					c.Close()
				}
			})
		}
	})
}

// arrived is a connection whose handshake is done.
type arrived struct {
	conn       net.Conn
	peer, lane int
	desk       *mapping
}

// lanesOver is how many connections a link has, over unix sockets or over TCP.
func lanesOver(unix bool) int {
	if unix {
		return lanes
	}
	return dataLanes
}

// assemble makes links of the connections to one listener, n each. A dialler that
// could not complete a link begins anew: the latest connection counts.
func (m *meeting) assemble(joining <-chan arrived, n int) {
	links := map[int]*link{}
	defer func() {
		for _, l := range links {
			l.close()
		}
	}()
	for {
		select {
		case a := <-joining:
			l := links[a.peer]
			if l == nil {
				l = newLink(a.peer)
				links[a.peer] = l
			}
			if old := l.conns[a.lane]; old != nil {
				old.Close()
			}
			l.conns[a.lane] = a.conn
			if a.lane == laneShared {
				l.desk = a.desk
			}
			if slices.Contains(l.conns[:n], nil) {
				continue
			}
			select {
			case m.joined <- l:
				delete(links, a.peer)
			case <-m.done:
				return
			}
		case <-m.done:
			return
		}
	}
}

// party is this rank as it introduces itself on a connection.
func (m *meeting) party(role handshake.Role, lane int) handshake.Party {
	g := m.group
	by := &g.opts.Member
	return handshake.Party{
		Role: role, Job: by.Job, HasSecret: by.Secret != nil, Rank: g.cfg.Rank, Lane: lane, Process: handshake.ThisProcess(),
	}
}

// checkUser returns an error if the other end of c is known to be another user's, and
// the job has no secret to tell by.
func (m *meeting) checkUser(c net.Conn) error {
	if by := &m.group.opts.Member; by.Secret != nil || by.Insecure {
		return nil
	}
	if err := peeruid.SameUser(c); errors.As(err, new(*peeruid.OtherUserError)) {
		return fmt.Errorf("%w: ranks of several users need the same secret: %s", err, handshake.TokenFileVar)
	}
	return nil
}

// welcome is the listener's side of the opening of a connection. The connection that it
// returns stands for c, with an error too if it is not nil.
func (m *meeting) welcome(c net.Conn, unix bool) (a arrived, err error) {
	stop := m.bound(c)
	defer stop()
	if err := m.checkUser(c); err != nil {
		return a, err
	}
	if unix {
		c = wrapUnix(c)
	}
	a.conn = c
	p, err := handshake.Accept(c, m.party(handshake.PeerListener, 0), m.key, nil)
	if err != nil {
		return a, err
	}
	a.peer, a.lane = p.Rank, p.Lane
	if a.peer <= m.group.cfg.Rank || a.peer >= m.group.cfg.Size || a.lane >= lanesOver(unix) {
		return a, fmt.Errorf("rank %d, lane %d", a.peer, a.lane)
	}
	if unix && a.lane == laneShared {
		if err := readAccepted(c); err != nil {
			return a, err
		}
		if a.desk, err = m.mapDesk(c); err != nil {
			return a, err
		}
		fd, _ := m.shm.descriptor()
		if err := writeFD(c, []byte{accepted}, fd); err != nil {
			return a, err
		}
	}
	if err := readAccepted(c); err != nil {
		return a, err
	}
	return a, tune(c)
}

// bound limits the handshake on c in time, until stop is called.
func (m *meeting) bound(c net.Conn) (stop func()) {
	c.SetDeadline(time.Now().Add(handshakeTimeout))
	over := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-m.done:
			c.SetDeadline(time.Unix(1, 0))
		case <-over:
			c.SetDeadline(time.Time{})
		}
	}()
	return func() {
		close(over)
		<-finished
	}
}

// mapDesk maps the desk whose descriptor came with what was last read.
func (m *meeting) mapDesk(c net.Conn) (*mapping, error) {
	fd, ok := takeFD(c)
	if !ok {
		return nil, errors.New("no descriptor came along")
	}
	_, size := m.shm.descriptor()
	return mapFD(fd, size)
}

func readAccepted(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if b[0] != accepted {
		return fmt.Errorf("handshake answered with %#x", b[0])
	}
	return nil
}

// dial makes the link to a lower rank: through shared memory if both are on
// the same host and it works, else through TCP.
func (m *meeting) dial(ctx context.Context, peer int, own, at address) (*link, error) {
	var errs []error
	if m.shm != nil && own.Host == at.Host && at.Unix != "" {
		l, err := m.dialAll(ctx, peer, "unix", at.Unix)
		if err == nil {
			return l, nil
		}
		m.group.log.Warn("no shared memory with a rank of this host: using TCP", "rank", m.group.cfg.Rank, "peer", peer, "error", err)
		errs = append(errs, err)
	}
	for _, a := range at.TCP {
		l, err := m.dialAll(ctx, peer, "tcp", a)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("rank %d at %v: %w", peer, at.TCP, errors.Join(errs...))
}

func (m *meeting) dialAll(ctx context.Context, peer int, network, at string) (*link, error) {
	l := newLink(peer)
	for lane := range lanesOver(network == "unix") {
		err := m.dialLane(ctx, l, lane, network, at)
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// dialLane is the dialler's side of the opening of a connection.
func (m *meeting) dialLane(ctx context.Context, l *link, lane int, network, at string) error {
	d := net.Dialer{Timeout: handshakeTimeout}
	c, err := d.DialContext(ctx, network, at)
	if err != nil {
		return err
	}
	user := m.checkUser(c)
	if network == "unix" {
		c = wrapUnix(c)
	}
	l.conns[lane] = c
	if user != nil {
		return user
	}
	stop := m.bound(c)
	defer stop()
	p, err := handshake.Dial(c, m.party(handshake.PeerDialler, lane), m.key)
	if err != nil {
		return err
	}
	if p.Rank != l.peer {
		return fmt.Errorf("rank %d is there", p.Rank)
	}
	if network == "unix" && lane == laneShared {
		fd, _ := m.shm.descriptor()
		if err := writeFD(c, []byte{accepted}, fd); err != nil {
			return err
		}
		if err := readAccepted(c); err != nil {
			return err
		}
		if l.desk, err = m.mapDesk(c); err != nil {
			return err
		}
	}
	if _, err := c.Write([]byte{accepted}); err != nil {
		return err
	}
	return tune(c)
}

// tune makes the kernel notice when a peer's host is gone, and not hold back
// small messages.
func tune(c net.Conn) error {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	err := t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silence / 4, Interval: silence / 4, Count: 3})
	return errors.Join(err, t.SetNoDelay(true))
}
