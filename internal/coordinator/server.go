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

	"github.com/goddp/goddp/internal/descriptors"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/peeruid"
)

// Defaults of how the two ends of a connection know that the other one runs.
const (
	DefaultInterval = time.Second      // between two messages Alive
	DefaultSilence  = 10 * time.Minute // until an end that says nothing counts as lost
)

// Options are what both ends of a connection need to know.
type Options struct {
	// Job, HasSecret and Key are for the handshake. Whoever has Key belongs to the job.
	Job       handshake.Job
	HasSecret bool
	Key       []byte
	Insecure  bool // without a secret, serve other users too
	// Interval is the time between two messages Alive; 0: DefaultInterval. Silence is after
	// what time without any message the other end counts as lost; 0: DefaultSilence.
	Interval, Silence time.Duration
	Log               *slog.Logger // nil: nobody
}

func (o Options) withDefaults() Options {
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	o.Silence = cmp.Or(o.Silence, DefaultSilence)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// silent is for how many ticks of the interval the other end may say nothing. Ticks are
// counted, and not time, since a process that is suspended has none.
func (o *Options) silent() silence { return max(2, silence(o.Silence/o.Interval)) }

// Server is the coordinator of a job: it serves the sessions of its ranks.
type Server struct {
	opts  Options
	size  int
	ln    net.Listener // nil: for ranks of this process alone
	wg    sync.WaitGroup
	done  chan struct{}
	ended chan struct{} // of one: a rank's connection has ended
	most  int           // connections that have introduced themselves
	why   string        // so few may be open
	taken atomic.Int32  // messages that are being read and carried out

	mu       sync.Mutex // of all that follows, and of every Core
	closed   bool
	sessions map[int]*session
	exited   []exit             // in the order in which they came
	open     map[net.Conn]bool  // all connections, and whether the rank there has joined
	admitted map[net.Conn]bool  // those that have introduced themselves
	peers    map[*peer]struct{} // those that have joined a session
}

// exit is the end of a rank's process.
type exit struct {
	rank int
	how  string
}

// session is one Init of all ranks.
type session struct {
	core  *Core
	peers map[int]*peer // by rank
}

// peer is a rank's connection.
type peer struct {
	session *session
	rank    int
	conn    net.Conn // nil in this process
	send    func(m *Message, encoded func() []byte) bool
	drop    func() // ends the connection once all has been sent
	cut     func() // ends it at once
	heard   bool   // since the last tick
	silence silence
	local   bool // it is in this process, and lives
}

// silence counts the ticks in which the other end of a connection has said nothing.
type silence int

// tick counts one, and tells whether to say Alive: rarely where nobody listens, whose
// unread messages would fill the connection.
func (n *silence) tick(heard bool) (say bool) {
	if *n++; heard {
		*n = 0
	}
	return *n < 4 || *n%16 == 0
}

// The bounds of what strangers may take: how long a handshake may last, and how many may be
// under way; and of how many ranks are served.
const (
	introductionTime = 10 * time.Second
	strangers        = 256
	connections      = 16384
)

// NewServer returns the coordinator of a job of this many ranks, for ranks of this process.
func NewServer(size int, o Options) *Server {
	s := &Server{
		opts: o.withDefaults(), size: size, done: make(chan struct{}), ended: make(chan struct{}, 1),
		sessions: map[int]*session{}, open: map[net.Conn]bool{}, admitted: map[net.Conn]bool{}, peers: map[*peer]struct{}{},
	}
	s.wg.Go(s.tick)
	return s
}

// Listen returns a coordinator that serves a TCP address, host:port.
func Listen(addr string, size int, o Options) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	s := NewServer(size, o)
	s.ln = ln
	s.most, s.why = descriptors.Share(connections, "the coordinator's process")
	s.wg.Go(s.accept)
	return s, nil
}

// Addr is the address that the server listens on.
func (s *Server) Addr() *net.TCPAddr { return s.ln.Addr().(*net.TCPAddr) }

// Exited tells that a rank's process has ended, and how.
func (s *Server) Exited(rank int, how string) {
	if rank < 0 || rank >= s.size {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exited = append(s.exited, exit{rank, how})
	for _, n := range s.sessions {
		n.deliver(n.core.Exited(rank, how), nil)
	}
}

// CloseIdle is Close once nobody is connected any more, else nothing.
func (s *Server) CloseIdle() error {
	s.mu.Lock()
	idle := len(s.peers) == 0
	s.mu.Unlock()
	if idle {
		return s.Close()
	}
	return nil
}

// flushTime is how long Close takes to say what has been decided.
const flushTime = time.Second

// Close ends all connections, once what is to be said is written, and returns once no
// goroutine of the server is left.
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

// accept serves the listener.
func (s *Server) accept() {
	slots := make(chan struct{}, min(strangers, s.most))
	for {
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, say: there may be some soon
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-s.done:
				return
			}
		}
		select {
		case slots <- struct{}{}:
		case <-s.done:
			c.Close()
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.open[c] = false
		s.wg.Go(func() { s.serve(c, func() { <-slots }) })
		s.mu.Unlock()
	}
}

// serve serves a connection. known is called once it has introduced itself, or failed to.
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
	c.SetDeadline(time.Now().Add(introductionTime))
	rank, err := s.introduce(c)
	if err != nil {
		s.opts.Log.Debug("coordinator: dropped a connection", "from", c.RemoteAddr(), "error", err)
		return
	}
	known()
	c.SetDeadline(time.Time{})
	if err := tune(c.(*net.TCPConn)); err != nil {
		s.opts.Log.Debug("coordinator: connection of a rank", "rank", rank, "error", err)
	}
	box := newOutbox()
	p := &peer{rank: rank, conn: c, drop: box.close, cut: func() { c.Close() }}
	p.send = func(_ *Message, encoded func() []byte) bool { return box.put(encoded()) }
	var writer sync.WaitGroup
	writer.Go(func() {
		box.run(c)
		c.Close()
	})
	defer writer.Wait()
	defer box.close()
	in := bufio.NewReaderSize(c, readSize)
	for err == nil {
		err = s.hear(p, c.(*net.TCPConn), in)
	}
	s.lost(p, err)
}

// hear takes what a rank has said next.
func (s *Server) hear(p *peer, c *net.TCPConn, in *bufio.Reader) error {
	awaitInput(c) // of an error the read tells
	s.taken.Add(1)
	defer s.taken.Add(-1)
	for {
		m, err := decode(in, maxMessage)
		if err == nil {
			err = s.take(p, m)
		}
		if err != nil || in.Buffered() == 0 {
			return err
		}
	}
}

// introduce performs the handshake.
func (s *Server) introduce(c net.Conn) (rank int, err error) {
	if !s.opts.HasSecret && !s.opts.Insecure {
		if err := peeruid.SameUser(c); errors.As(err, new(*peeruid.OtherUserError)) {
			return 0, err
		}
	}
	own := handshake.Party{Role: handshake.Coordinator, Job: s.opts.Job, HasSecret: s.opts.HasSecret, Rank: -1, Process: handshake.ThisProcess()}
	party, err := handshake.Accept(c, own, s.opts.Key, func() error { return s.admit(c) })
	return party.Rank, err
}

// admit takes a connection of the job, if there may be another one.
func (s *Server) admit(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.admitted) >= s.most {
		return fmt.Errorf("%d connections with the coordinator, at most %d%s", s.most+1, s.most, s.why)
	}
	s.admitted[c] = true
	return nil
}

// take carries out what a rank said. Its first word but Alive is Join.
func (s *Server) take(p *peer, m *Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.heard = true
	switch {
	case s.closed:
		return net.ErrClosed
	case m.Verb == Alive:
		return nil
	case m.Verb == Join && p.session != nil:
		return fmt.Errorf("rank %d joined twice", p.rank)
	case m.Verb == Join:
		s.enter(p, m.Session)
	case p.session == nil:
		return fmt.Errorf("rank %d said %v before it joined", p.rank, m.Verb)
	case p.session.peers[p.rank] != p:
		return fmt.Errorf("rank %d said %v, and was refused", p.rank, m.Verb)
	}
	out, err := p.session.core.Step(p.rank, m)
	p.session.deliver(out, p)
	return err
}

// enter gives a connection its session.
func (s *Server) enter(p *peer, number int) {
	n := s.sessions[number]
	if n == nil {
		n = &session{core: NewCore(s.size), peers: map[int]*peer{}}
		for _, e := range s.exited {
			n.core.Exited(e.rank, e.how)
		}
		s.sessions[number] = n
	}
	p.session = n
	s.peers[p] = struct{}{}
	if p.conn != nil {
		s.open[p.conn] = true
	}
	if n.peers[p.rank] == nil && p.rank >= 0 && p.rank < s.size { // else it is about to be refused
		n.peers[p.rank] = p
	}
}

// deliver sends what the core says. A message for many is encoded once.
func (n *session) deliver(out []Outgoing, sender *peer) {
	for _, o := range out {
		encoded := sync.OnceValue(func() []byte { return encode(o.Message) })
		for _, rank := range o.To {
			p := n.peers[rank]
			if rank == Sender {
				p = sender
			}
			if p != nil && !p.send(o.Message, encoded) {
				p.cut()
			}
			if p != nil && rank == Sender { // it is refused
				p.drop()
			}
		}
	}
}

// lost notes that a rank's connection ended.
func (s *Server) lost(p *peer, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p)
	select {
	case s.ended <- struct{}{}:
	default:
	}
	n := p.session
	if s.closed || n == nil || n.peers[p.rank] != p { // this end ended it
		return
	}
	delete(n.peers, p.rank)
	how := "its process ended"
	if !errors.Is(why, io.EOF) && !errors.Is(why, net.ErrClosed) && !errors.Is(why, syscall.ECONNRESET) {
		how = why.Error()
	}
	if p.silence > s.opts.silent() {
		how = fmt.Sprintf("it has not been heard of for %v", s.opts.Silence)
	}
	n.deliver(n.core.Lost(p.rank, how), nil)
	if len(n.peers) == 0 && n.core.Over() {
		for number, other := range s.sessions {
			if other == n {
				delete(s.sessions, number)
			}
		}
	}
}

// tick tells the ranks that the coordinator runs, and ends the connections of those that
// have been silent for too long.
func (s *Server) tick() {
	alive := &Message{Verb: Alive}
	encoded := sync.OnceValue(func() []byte { return encode(alive) })
	ticker := time.NewTicker(s.opts.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.done:
			return
		}
		s.mu.Lock()
		for p := range s.peers {
			if p.local {
				continue
			}
			say := p.silence.tick(p.heard)
			p.heard = false
			if p.silence > s.opts.silent() || say && !p.send(alive, encoded) {
				p.cut()
			}
		}
		s.mu.Unlock()
	}
}
