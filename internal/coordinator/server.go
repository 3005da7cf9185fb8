package coordinator

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/wire"
)

// The defaults of Options.
const (
	DefaultInterval = time.Second
	DefaultSilence  = 10 * time.Minute
)

// Options are the options that a rank and the coordinator both need for their connection.
type Options struct {
	// Job, HasSecret and Key are for the handshake. A process proves by Key that it belongs to the
	// job: the coordinator serves only processes that know Key.
	Job       handshake.Job
	HasSecret bool
	Key       []byte
	Insecure  bool // in a job without a secret, the coordinator also serves processes of other users
	// Elastic, if not nil, makes the job of a coordinator elastic. The ranks of clients are ids of workers
	// until they have entered an epoch.
	Elastic *Elastic
	// Interval is the time between two messages Alive. 0 means DefaultInterval.
	Interval time.Duration
	// Silence is the time after which the other end of the connection counts as lost if no message
	// arrives from it. 0 means DefaultSilence.
	Silence time.Duration
	Log     *slog.Logger // nil means no log
}

func (o Options) withDefaults() Options {
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	o.Silence = cmp.Or(o.Silence, DefaultSilence)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// silent returns the number of ticks for which the other end of a connection may be silent. After more
// ticks of silence, the other end counts as lost. The client and the server count ticks, not time. A
// suspended process counts no ticks, so when it runs again, it does not mistake its own pause for
// silence of the others.
func (o *Options) silent() silence { return max(2, silence(o.Silence/o.Interval)) }

// Server is the coordinator of a job. It serves all sessions of the job's ranks.
type Server struct {
	opts        Options
	size        int
	ln          net.Listener // nil if the server serves only ranks of this process
	wg          sync.WaitGroup
	done        chan struct{}
	ended       chan struct{} // capacity 1; a value says that a rank's connection has ended (for awaitOthers)
	limit       int           // the largest allowed size of admitted
	limitReason string        // if limit is less than maxConnections: the reason, for the error of admit
	taken       atomic.Int32  // the number of goroutines that are reading and handling messages

	mu       sync.Mutex // guards the fields below, and every Core
	closed   bool
	elastic  *elastic // nil unless the job is elastic
	sessions map[int]*session
	exited   []exit             // the processes that have ended; the first one that ended comes first
	open     map[net.Conn]bool  // all accepted connections; the value says whether a rank has joined over the connection
	admitted map[net.Conn]bool  // the accepted connections that count towards limit; admit adds them
	peers    map[*peer]struct{} // the ranks that have joined a session, also the ranks in this process
}

// exit is the end of a rank's process.
type exit struct {
	rank int
	how  string
}

// session is the coordinator's state of one session: all ranks join once, and later leave.
type session struct {
	core    *Core
	peers   map[int]*peer // by rank
	workers []int         // in an elastic job: the members, by rank
}

// peer is a rank's connection.
type peer struct {
	session     *session // nil before it has joined one
	rank        int      // at the door of an elastic job: the worker
	conn        net.Conn // nil if the rank is in this process; the server does not detect its silence then
	send        func(m *Message, encoded func() []byte) bool
	drop        func() // ends the connection once all messages to the rank are sent
	cut         func() // ends the connection at once
	hasReceived bool   // a message from the rank has arrived since the last tick
	silence     silence
}

// silence is the number of ticks for which the other end of a connection has been silent.
type silence int

// tick counts a tick. The parameter hasReceived says whether a message has arrived since the last tick.
// The result say tells the caller to send Alive now. If the other end has been silent for 4 ticks, the
// caller sends Alive only at every 16th tick: a suspended process reads nothing, and unread messages
// would fill the buffers of the connection.
func (n *silence) tick(hasReceived bool) (say bool) {
	if *n++; hasReceived {
		*n = 0
	}
	return *n < 4 || *n%16 == 0
}

// Bounds on the duration and the number of handshakes, and on the number of connections.
const (
	handshakeTime  = 10 * time.Second
	maxHandshakes  = 256
	maxConnections = 16384
)

// NewServer returns the coordinator of a job of `size` ranks. It has no listener: ranks of this process
// connect by Local.
func NewServer(size int, o Options) *Server {
	s := &Server{
		opts: o.withDefaults(), size: size, done: make(chan struct{}), ended: make(chan struct{}, 1),
		sessions: map[int]*session{}, open: map[net.Conn]bool{}, admitted: map[net.Conn]bool{}, peers: map[*peer]struct{}{},
	}
	if e := o.Elastic; e != nil {
		s.elastic = &elastic{Elastic: *e, membership: NewMembership(e.Min), door: map[int]*peer{}, away: map[int]silence{}}
	}
	s.wg.Go(s.tick)
	return s
}

// Listen returns the coordinator of a job of `size` ranks. It listens on the TCP address addr, which is
// host:port. Ranks of other processes connect by Dial, ranks of this process by Local.
func Listen(addr string, size int, o Options) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	s := NewServer(size, o)
	s.ln = ln
	s.limit, s.limitReason = wire.ShareFiles(maxConnections, "the coordinator's process")
	s.wg.Go(s.accept)
	return s, nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() *net.TCPAddr { return s.ln.Addr().(*net.TCPAddr) }

// Exited notifies the server that the process of a rank has ended. The text `how` describes the end,
// such as "exit code 1".
func (s *Server) Exited(rank int, how string) {
	if rank < 0 || rank >= s.size {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit(rank, how)
}

// exit notes that the process of a rank has ended. The caller must hold mu.
func (s *Server) exit(rank int, how string) {
	s.exited = append(s.exited, exit{rank, how})
	for _, n := range s.sessions {
		n.deliver(n.core.Exited(rank, how), nil)
	}
}

// flushTime is the longest time for which Server.Close and Client.Close send pending messages. Then they
// end the connections.
const flushTime = time.Second

// Close sends the pending messages, ends all connections, and waits for the server's goroutines to
// end.
func (s *Server) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	if first {
		close(s.done)
		if s.ln != nil {
			s.ln.Close()
		}
		for c, joined := range s.open {
			if !joined {
				c.Close()
			}
			c.SetDeadline(time.Now().Add(flushTime))
		}
		for p := range s.peers {
			p.drop()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// accept accepts connections until the server is closed.
func (s *Server) accept() {
	slots := make(chan struct{}, min(maxHandshakes, s.limit))
	wire.Accept(s.ln, s.done, func(c net.Conn) {
		select {
		case slots <- struct{}{}:
		case <-s.done:
			c.Close()
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			c.Close()
			return
		}
		s.open[c] = false
		s.wg.Go(func() { s.serve(c, func() { <-slots }) })
	})
}

// serve performs the handshake on a connection, and then handles the messages of the rank until the
// connection ends. It calls the function known once, when the handshake has succeeded or failed.
func (s *Server) serve(c net.Conn, known func()) {
	known = sync.OnceFunc(known)
	defer known()
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.open, c)
		delete(s.admitted, c)
		s.mu.Unlock()
	}()
	c.SetDeadline(time.Now().Add(handshakeTime))
	rank, err := s.shakeHands(c)
	if err != nil {
		s.opts.Log.Debug("coordinator: dropped a connection", "from", c.RemoteAddr(), "error", err)
		return
	}
	known()
	c.SetDeadline(time.Time{})
	if err := detectDeadHost(c.(*net.TCPConn)); err != nil {
		s.opts.Log.Debug("coordinator: connection of a rank", "rank", rank, "error", err)
	}
	box := wire.NewOutbox(maxPending)
	p := &peer{rank: rank, conn: c, drop: box.Close, cut: func() { c.Close() }}
	p.send = func(_ *Message, encoded func() []byte) bool { return box.Put(encoded()) }
	var writer sync.WaitGroup
	writer.Go(func() {
		box.Run(c)
		c.Close()
	})
	defer writer.Wait()
	defer box.Close()
	in := bufio.NewReaderSize(c, readSize)
	for err == nil {
		err = s.receive(p, c.(*net.TCPConn), in)
	}
	s.peerLost(p, err)
}

// receive waits for messages of a rank, and reads and handles them. It returns nil when no input is
// buffered any more.
func (s *Server) receive(p *peer, c *net.TCPConn, in *bufio.Reader) error {
	awaitInput(c) // if the connection has failed, decode returns the error
	s.taken.Add(1)
	defer s.taken.Add(-1)
	for {
		m, err := decode(in)
		if err == nil {
			err = s.handle(p, m)
		}
		if err != nil || in.Buffered() == 0 {
			return err
		}
	}
}

// shakeHands performs the handshake and returns the rank at the other end of the connection.
func (s *Server) shakeHands(c net.Conn) (rank int, err error) {
	self := handshake.Party{Role: handshake.Coordinator, Job: s.opts.Job, HasSecret: s.opts.HasSecret, Rank: -1, Process: handshake.ThisProcess()}
	_, party, err := handshake.Accept(c, self, s.opts.Key, func() error { return s.admit(c) })
	return party.Rank, err
}

// admit adds a connection to admitted. It returns an error if there are too many connections, or if the
// process at the other end is another user's and no secret says that it belongs to the job.
func (s *Server) admit(c net.Conn) error {
	if !s.opts.HasSecret && !s.opts.Insecure {
		if err := handshake.SameUser(c); errors.As(err, new(*handshake.OtherUserError)) {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.admitted) >= s.limit {
		return fmt.Errorf("too many connections to the coordinator: %d, want at most %d%s", s.limit+1, s.limit, s.limitReason)
	}
	s.admitted[c] = true
	return nil
}

// handle handles a message of a rank. A rank must send Join before any other message except Alive.
func (s *Server) handle(p *peer, m *Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.hasReceived = true
	switch {
	case s.closed:
		return net.ErrClosed
	case m.Verb == Alive:
		return nil
	case m.Verb == Enter:
		return s.enter(p, m)
	case m.Verb == Join && p.session == nil: // otherwise an epoch has begun, which the core expects the rank to join
		s.joinSession(p, m.Session)
	case p.session == nil:
		return fmt.Errorf("rank %d sent %v before it joined", p.rank, m.Verb)
	case p.session.peers[p.rank] != p:
		return fmt.Errorf("rank %d sent %v after it was refused", p.rank, m.Verb)
	}
	out, err := p.session.core.Step(p.rank, m)
	p.session.deliver(out, p)
	if s.elastic != nil {
		s.accuse(p.session, out)
	}
	return err
}

// joinSession assigns a connection to the session with this number. It creates the session if none
// has this number.
func (s *Server) joinSession(p *peer, number int) {
	n := s.sessions[number]
	if n == nil {
		n = &session{core: NewCore(s.size), peers: map[int]*peer{}}
		for _, e := range s.exited {
			n.core.Exited(e.rank, e.how)
		}
		s.sessions[number] = n
	}
	p.session = n
	s.connected(p)
	if n.peers[p.rank] == nil && p.rank >= 0 && p.rank < s.size { // otherwise the core refuses the connection
		n.peers[p.rank] = p
	}
}

// connected notes that a connection is one of a rank. The caller must hold mu.
func (s *Server) connected(p *peer) {
	s.peers[p] = struct{}{}
	if p.conn != nil {
		s.open[p.conn] = true
	}
}

// tell sends a message, or ends the connection if that is not possible.
func (p *peer) tell(m *Message) {
	if !p.send(m, func() []byte { return wire.Encode(m) }) {
		p.cut()
	}
}

// deliver sends the messages that the core has returned. It encodes each message only once, even if
// the message goes to many ranks. sender is the connection whose message the core has handled.
func (n *session) deliver(out []Outgoing, sender *peer) {
	for _, o := range out {
		encoded := sync.OnceValue(func() []byte { return wire.Encode(o.Message) })
		for _, rank := range o.To {
			p := n.peers[rank]
			if rank == Sender {
				p = sender
			}
			if p != nil && !p.send(o.Message, encoded) {
				p.cut()
			}
			if p != nil && rank == Sender { // the core has refused the connection
				p.drop()
			}
		}
	}
}

// peerLost handles the end of a rank's connection.
func (s *Server) peerLost(p *peer, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p)
	select {
	case s.ended <- struct{}{}:
	default:
	}
	n := p.session
	if s.elastic != nil && n == nil && !s.closed {
		s.leftDoor(p)
	}
	if s.closed || n == nil || n.peers[p.rank] != p { // no failure: this server is closed, the rank has not joined, or the core has refused the connection
		return
	}
	delete(n.peers, p.rank)
	how := "its process ended, or called exec"
	if !errors.Is(cause, io.EOF) && !errors.Is(cause, net.ErrClosed) && !errors.Is(cause, syscall.ECONNRESET) {
		how = cause.Error()
	}
	if p.silence > s.opts.silent() {
		how = fmt.Sprintf("no message arrived from it for %v", s.opts.Silence)
	}
	n.deliver(n.core.Lost(p.rank, how), nil)
	if s.elastic != nil {
		s.leftEpoch(n, p.rank, how)
	}
	if len(n.peers) == 0 && n.core.Ended() {
		for number, other := range s.sessions {
			if other == n {
				delete(s.sessions, number)
			}
		}
	}
}

// tick sends Alive to the ranks every interval. It ends the connections of ranks that have been silent
// for longer than Options.Silence.
func (s *Server) tick() {
	alive := &Message{Verb: Alive}
	encoded := sync.OnceValue(func() []byte { return wire.Encode(alive) })
	ticker := time.NewTicker(s.opts.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.done:
			return
		}
		s.mu.Lock()
		if s.elastic != nil {
			s.tickAway()
			s.tickWishes()
		}
		for p := range s.peers {
			if p.conn == nil {
				continue
			}
			say := p.silence.tick(p.hasReceived)
			p.hasReceived = false
			if p.silence > s.opts.silent() || say && !p.send(alive, encoded) {
				p.cut()
			}
		}
		s.mu.Unlock()
	}
}
