package store

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/handshake"
)

// ServerOptions configure a [Server]. The zero value is a good default.
type ServerOptions struct {
	// Logger gets a line for each connection that the server refuses or closes
	// for what came over it: at most one a second, with their number. Default:
	// slog.Default().
	Logger *slog.Logger

	// Limits bound the table and the requests.
	Limits Limits

	// Clients bounds the connections of clients that have proved to belong to the
	// job. A [Client] holds one and one more for each call that waits. Default 16384.
	Clients int

	// InFlightBytes bounds, over the connections of those clients, the memory of
	// requests that are being received or wait and of replies being sent. The
	// first 16 KiB of each connection do not count. Default 512 MiB.
	InFlightBytes int64

	// Unproven bounds what clients may take that have not proved to belong to
	// the job, such as PyTorch's.
	Unproven Quota

	// FrameTimeout bounds the time from the first byte of a request to its
	// last, and the writing of a reply. Default 30 s.
	FrameTimeout time.Duration

	// Member is the process that hosts the server, and the job that it is for. A
	// client that introduces itself must be of that job and have its secret, if it
	// has one. Without a secret, or Insecure, Listen refuses an address that other
	// hosts can reach.
	Member Member
}

// A Quota bounds what some clients of a server may take together. A zero field
// is the default, which is never more than the server's own limit.
type Quota struct {
	// Clients bounds their connections, and once more those that have not sent a
	// byte. A PyTorch 1.x worker holds one of either. Default 2048.
	Clients int
	// InFlightBytes is as in [ServerOptions]. Default 64 MiB.
	InFlightBytes int64
	// TableBytes is how large the table may get by what they write. Default 32 MiB.
	TableBytes int64
}

func (o ServerOptions) withDefaults() ServerOptions {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Limits = o.Limits.withDefaults()
	o.Clients = cmp.Or(o.Clients, 16384)
	o.InFlightBytes = cmp.Or(o.InFlightBytes, 512<<20)
	o.FrameTimeout = cmp.Or(o.FrameTimeout, 30*time.Second)
	o.Unproven = Quota{
		Clients:       cmp.Or(o.Unproven.Clients, min(2048, o.Clients)),
		InFlightBytes: cmp.Or(o.Unproven.InFlightBytes, min(64<<20, o.InFlightBytes)),
		TableBytes:    cmp.Or(o.Unproven.TableBytes, min(32<<20, o.Limits.TableBytes)),
	}
	return o
}

// A Server owns a table and serves it on a TCP address until Close.
type Server struct {
	ln         net.Listener
	table      *table
	opts       ServerOptions
	name       string         // random
	pools      [classes]*pool // those of the silent and of strangers are empty
	rejections rejections
	wg         sync.WaitGroup // the accepting goroutine and those of the connections

	mu      sync.Mutex
	slots   *slots
	bearers map[int]*bearer // by rank
	closed  chan struct{}   // closed under mu
}

// Listen starts a server on addr, "host:port". An empty addr is a free port of
// the loopback interface. An empty host, as in ":29500", is every interface.
func Listen(addr string, opts *ServerOptions) (*Server, error) {
	addr = cmp.Or(addr, "127.0.0.1:0")
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("store %s: %w: another job or program has the port: end it, or choose another port", addr, netError{err, addr})
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", addr, netError{err, addr})
	}
	var o ServerOptions
	if opts != nil {
		o = *opts
	}
	if err := checkExposure(ln.Addr(), &o.Member); err != nil {
		ln.Close()
		return nil, fmt.Errorf("store %s: %w", addr, err)
	}
	o = o.withDefaults()
	s := &Server{
		ln:         ln,
		table:      newTable(o.Limits),
		opts:       o,
		name:       rand.Text(),
		bearers:    make(map[int]*bearer),
		rejections: rejections{log: o.Logger},
		slots:      newSlots([classes]int{o.Unproven.Clients, maxStrangers, o.Unproven.Clients, o.Clients}),
		closed:     make(chan struct{}),
	}
	s.slots.fitDescriptors()
	if o.Member.Insecure {
		o.Logger.Warn("store: "+handshake.InsecureVar+"=1: any process that reaches the store is served", "addr", s.Addr())
	}
	s.pools[silent] = &pool{}
	s.pools[stranger] = &pool{}
	s.pools[unproven] = &pool{limit: o.Unproven.InFlightBytes}
	s.pools[member] = &pool{limit: o.InFlightBytes}
	s.wg.Go(s.accept)
	return s, nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Local returns a new handle on the server's table that uses no socket.
func (s *Server) Local() Store { return newLocal(s.table) }

// Close stops the server, ends every connection and every wait, and returns
// once all its goroutines have ended.
func (s *Server) Close() error {
	s.mu.Lock()
	var err error
	select {
	case <-s.closed:
	default:
		close(s.closed)
		err = s.ln.Close()
		s.table.close()
		for nc := range s.slots.where {
			nc.Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.rejections.close()
	return err
}

func (s *Server) accept() {
	const pause = 50 * time.Millisecond // after a failure such as a lack of file descriptors
	for {
		nc, err := s.ln.Accept()
		if err == nil {
			s.admit(nc)
			continue
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			s.mu.Lock()
			evicted := s.slots.evict(silent)
			s.mu.Unlock()
			s.reject(evicted, err)
		}
		select {
		case <-s.closed:
			return
		case <-time.After(pause):
			s.rejections.add(s.Addr(), fmt.Errorf("accept failed: %w", err))
		}
	}
}

// admit serves nc, unless the server is closed.
func (s *Server) admit(nc net.Conn) {
	s.mu.Lock()
	select {
	case <-s.closed:
		s.mu.Unlock()
		nc.Close()
		return
	default:
	}
	evicted := s.slots.add(nc)
	s.serve(nc)
	s.mu.Unlock()
	s.reject(evicted, s.slots.full(silent))
}

// serve serves nc, which has a slot, on a goroutine of its own. The caller must
// hold mu, so that Close waits for the goroutine.
func (s *Server) serve(nc net.Conn) {
	s.wg.Go(func() {
		err := newServerConn(s, nc).serve()
		nc.Close()
		s.mu.Lock()
		s.slots.remove(nc)
		s.mu.Unlock()
		if departed(err) {
			s.opts.Logger.Debug("store: connection closed", "peer", nc.RemoteAddr().String(), "err", err)
			return
		}
		s.rejections.add(nc.RemoteAddr().String(), err)
	})
}

// reject closes nc, unless it is nil, and logs why.
func (s *Server) reject(nc net.Conn, why error) {
	if nc != nil {
		nc.Close()
		s.rejections.add(nc.RemoteAddr().String(), why)
	}
}

// departed reports whether err means no more than that the peer, or the server, left.
func departed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// A serverConn serves one connection: a goroutine that reads a request, carries
// it out and writes the reply, and while a WAIT is parked a second one that
// writes the reply to it. The two never write at the same time, since the first
// ends the second before it does anything else.
type serverConn struct {
	s      *Server
	nc     net.Conn
	dec    decoder
	w      *bufio.Writer
	memory account
	held   int   // memory of the request in hand
	most   int64 // that the table may grow to by what this client writes
	parked *parked
	left   func() // is called at the connection's end
}

// A parked is a WAIT whose keys do not all exist yet.
type parked struct {
	w     *waiter
	ended chan struct{} // closed once its goroutine is done
}

// bufferSize is small: many connections are idle for as long as the job runs.
const bufferSize = 1 << 10

func newServerConn(s *Server, nc net.Conn) *serverConn {
	c := &serverConn{s: s, nc: nc, w: bufio.NewWriterSize(nc, bufferSize), left: func() {}}
	c.memory.pool = s.pools[silent]
	c.dec = decoder{r: bufio.NewReaderSize(nc, bufferSize), limits: s.opts.Limits, reserve: c.reserve}
	return c
}

// become gives the connection the slot, the pool and the share of the table of a
// class. The connection must hold no memory.
func (c *serverConn) become(to class) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := c.s.slots.move(c.nc, to); err != nil {
		return err
	}
	c.memory.pool = c.s.pools[to]
	c.most = c.s.opts.Unproven.TableBytes
	if to == member {
		c.most = c.s.opts.Limits.TableBytes
	}
	return nil
}

// serve returns why the connection ended, io.EOF if the peer closed it.
func (c *serverConn) serve() error {
	defer c.unpark()
	defer c.release()
	defer func() { c.left() }()
	d, err := c.admit()
	if err != nil {
		return err
	}
	for {
		req, err := c.receive(d)
		if err != nil {
			return err
		}
		// A client asks for one thing at a time: what came now means that it no
		// longer waits.
		c.unpark()
		select {
		case <-c.s.closed: // who saw one connection end is not to be answered on another
			return net.ErrClosed
		default:
		}
		if err := c.handle(req); err != nil {
			return fmt.Errorf("%v: %w", req.op, err)
		}
		c.release()
	}
}

// dialect looks at the first bytes that come and, if they are VALIDATE, reads it.
func (c *serverConn) dialect() (dialect, error) {
	first, err := c.dec.r.Peek(1)
	if err != nil {
		return 0, err
	}
	if first[0] != byte(opValidate) {
		return dialect1, nil
	}
	c.nc.SetReadDeadline(time.Now().Add(c.s.opts.FrameTimeout))
	head, err := c.dec.r.Peek(5)
	if err != nil {
		return 0, c.explain(err)
	}
	if binary.LittleEndian.Uint32(head[1:]) != validateMagic {
		return dialect1, nil
	}
	_, err = c.dec.r.Discard(len(head))
	return dialect2, err
}

// receive reads a request. Between requests a client may be silent for as long
// as it likes.
func (c *serverConn) receive(d dialect) (request, error) {
	c.nc.SetReadDeadline(time.Time{})
	if _, err := c.dec.r.Peek(1); err != nil {
		return request{}, err
	}
	c.nc.SetReadDeadline(time.Now().Add(c.s.opts.FrameTimeout))
	req, err := c.dec.request(d)
	return req, c.explain(err)
}

func (c *serverConn) explain(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("request not complete within %v: %w", c.s.opts.FrameTimeout, err)
	}
	return err
}

// handle carries req out and replies, or parks it.
func (c *serverConn) handle(req request) error {
	var (
		t   = c.s.table
		rep reply
		err error
	)
	switch req.op {
	case opValidate:
		return errors.New("not the first request")
	case opSet:
		return t.set(req.keys[0], req.values[0], c.most)
	case opAppend:
		return t.append(req.keys[0], req.values[0], c.most)
	case opMultiSet:
		return t.setAll(req.keys, req.values, c.most)
	case opCompareSet:
		rep.values = make([][]byte, 1)
		rep.values[0], err = t.compareAndSet(req.keys[0], req.values[0], req.values[1], c.most)
	case opGet, opMultiGet:
		if err := c.reserve(sliceHeader * len(req.keys)); err != nil {
			return err
		}
		rep.values, _ = t.get(req.keys...)
	case opAdd:
		rep.number, err = t.add(req.keys[0], req.number, c.most)
	case opCheck:
		if !t.has(req.keys) {
			rep.number = checkNotReady
		}
	case opWait:
		return c.wait(req)
	case opNumKeys:
		rep.number = t.len()
	case opDelete:
		if t.delete(req.keys[0]) {
			rep.number = 1
		}
	case opCancelWait:
		rep.number = waitCanceled
	case opPing:
		rep.number = req.number
	}
	if err != nil {
		return err
	}
	return c.reply(req.op, rep)
}

func (c *serverConn) reply(op opcode, rep reply) error {
	total := 0
	for _, v := range rep.values {
		total += len(v)
	}
	if most := c.s.opts.Limits.RequestBytes; total > most {
		return limitError("bytes in a reply", total, most)
	}
	if err := c.reserve(total); err != nil {
		return err
	}
	return c.write(op, rep)
}

func (c *serverConn) write(op opcode, rep reply) error {
	c.nc.SetWriteDeadline(time.Now().Add(c.s.opts.FrameTimeout))
	writeReply(c.w, op, rep)
	return c.w.Flush()
}

// wait replies once the keys of req exist. Until then the parked wait holds the
// memory of the request.
func (c *serverConn) wait(req request) error {
	w := c.s.table.wait(req.keys)
	select {
	case <-w.done:
		if !w.met {
			return net.ErrClosed
		}
		return c.write(opWait, reply{number: stopWaiting})
	default:
	}
	p := &parked{w: w, ended: make(chan struct{})}
	held := c.held
	c.parked, c.held = p, 0
	c.s.wg.Go(func() {
		defer close(p.ended)
		defer c.memory.give(held)
		<-w.done
		if !w.met {
			return
		}
		if c.write(opWait, reply{number: stopWaiting}) != nil {
			c.nc.Close() // the reading goroutine reports it
		}
	})
	return nil
}

// unpark drops the parked wait, unless it is being answered, and waits for the
// end of its goroutine.
func (c *serverConn) unpark() {
	if c.parked != nil {
		c.s.table.cancel(c.parked.w)
		<-c.parked.ended
		c.parked = nil
	}
}

// reserve takes memory for the request in hand.
func (c *serverConn) reserve(n int) error {
	if err := c.memory.take(n); err != nil {
		return err
	}
	c.held += n
	return nil
}

// release gives back the memory of the request in hand.
func (c *serverConn) release() {
	c.memory.give(c.held)
	c.held = 0
}
