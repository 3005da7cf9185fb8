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

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/wire"
)

// ServerOptions configure a [Server]. The zero value is a good default.
type ServerOptions struct {
	// Logger receives lines about rejected connections, at most one per second, and one per minute
	// in a flood. Default: slog.Default().
	Logger *slog.Logger

	// Limits bound the table and the requests.
	Limits Limits

	// Clients is the largest number of connections of clients that have proved that they
	// belong to the job. A [Client] has one connection, and one more for each call that
	// waits. Default 16384.
	Clients int

	// InFlightBytes limits the total memory of these clients' connections for requests being
	// received or waiting, and for replies being sent. The first 16 KiB of each connection are not
	// counted. Default 512 MiB.
	InFlightBytes int64

	// Unproven bounds the connections and the memory of clients that have not proved that
	// they belong to the job, such as PyTorch's.
	Unproven Quota

	// FrameTimeout is the longest time from the first to the last byte of a request, and
	// the longest time for writing a reply. Default 30 s.
	FrameTimeout time.Duration

	// Member identifies the process that hosts the server, and the job. A client that performs a
	// handshake must belong to this job and, if the job has a secret, know it. If Member has no secret
	// and Insecure is not set, Listen rejects an address that other hosts can reach.
	Member Member
}

// A Quota bounds the connections and the memory that certain clients of a server may use
// together. A zero field means the default, which never exceeds the limit of the server.
type Quota struct {
	// Clients limits two kinds of connections of these clients, each by itself: those that have
	// sent something, and those that have not sent a byte yet. A PyTorch 1.x worker has one
	// connection of each kind. Default 2048.
	Clients int
	// InFlightBytes bounds memory as in [ServerOptions]. Default 64 MiB.
	InFlightBytes int64
	// TableBytes is the maximum size to which these clients may grow the table. Default 32 MiB.
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
	pools      [classes]*pool // the pools of the classes silent and stranger are empty
	rejections *wire.Rejections
	wg         sync.WaitGroup // the goroutine that accepts, and the goroutines of the connections

	mu      sync.Mutex
	slots   *slots
	bearers map[int]*bearer // by rank
	closed  chan struct{}   // closed under mu
}

// Listen starts a server on addr, "host:port". If addr is empty, it takes a free port of
// the loopback interface. If the host is empty, as in ":29500", the server listens on all
// interfaces.
func Listen(addr string, opts *ServerOptions) (*Server, error) {
	if addr == "" {
		addr = net.JoinHostPort(wire.Loopback(), "0")
	}
	ln, err := wire.Listen(addr)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("store %s: %w: no interface of this host has the address", addr, netError{err, addr})
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("store %s: %w: another job or program has the port: end it, or choose another port", addr, netError{err, addr})
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", addr, netError{err, addr})
	}
	o := *cmp.Or(opts, &ServerOptions{})
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
		rejections: wire.NewRejections(o.Logger, "store: connection rejected"),
		slots:      newSlots([classes]int{o.Unproven.Clients, maxStrangers, o.Unproven.Clients, o.Clients}),
		closed:     make(chan struct{}),
	}
	s.slots.fitDescriptors()
	if o.Member.Insecure {
		o.Logger.Warn("store: "+jobenv.InsecureVar+"=1: any process that reaches the store is served", "addr", s.Addr())
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
func (s *Server) Local() *Local { return newLocal(s.table) }

// Close stops the server, and ends every connection and every wait. It returns when all
// goroutines of the server have ended.
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
	s.rejections.Close()
	return err
}

func (s *Server) accept() {
	const pause = 50 * time.Millisecond // the pause after a failure, such as too few file descriptors
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
			s.rejections.Add(s.Addr(), fmt.Errorf("accept failed: %w", err))
		}
	}
}

// admit starts serving the new connection nc, unless the server is closed.
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

// serve starts a goroutine that serves nc. nc must have a slot. The caller must hold mu, so
// that Close waits for the goroutine.
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
		s.rejections.Add(nc.RemoteAddr().String(), err)
	})
}

// reject closes nc, unless it is nil, and logs why.
func (s *Server) reject(nc net.Conn, why error) {
	if nc != nil {
		nc.Close()
		s.rejections.Add(nc.RemoteAddr().String(), why)
	}
}

// departed reports whether err only means that the client or the server closed the
// connection.
func departed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// A serverConn serves one connection. Its main goroutine reads requests, performs them and
// writes the replies. While a WAIT is parked, a second goroutine waits for the keys and
// writes the reply to the WAIT. The two goroutines never write at the same time, because
// the main one ends the second one before it performs a request.
type serverConn struct {
	s      *Server
	nc     net.Conn
	dec    decoder
	w      *bufio.Writer
	memory account
	held   int     // memory of the current request
	most   int64   // the maximum size to which this client may grow the table
	parked *parked // the parked WAIT; nil if there is none
	left   func()  // called when the connection ends
}

// A parked is a WAIT that waits because not all of its keys exist.
type parked struct {
	w     *waiter
	ended chan struct{} // closed once its goroutine is done
}

// bufferSize is the size of the buffers of a connection. It is small, because many
// connections are idle as long as the job runs.
const bufferSize = 1 << 10

func newServerConn(s *Server, nc net.Conn) *serverConn {
	c := &serverConn{s: s, nc: nc, w: bufio.NewWriterSize(nc, bufferSize), left: func() {}}
	c.memory.pool = s.pools[silent]
	c.dec = decoder{r: bufio.NewReaderSize(nc, bufferSize), limits: s.opts.Limits, reserve: c.reserve}
	return c
}

// become moves the connection to a class, with its slots, pool and share of the table. The
// connection must hold no memory.
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

// serve serves the connection until it ends, and returns the reason: io.EOF if the client
// closed it.
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
		// A client makes one request at a time. So a new request means that the client no
		// longer waits for the previous request.
		c.unpark()
		select {
		case <-c.s.closed: // a client that saw one connection end must get no reply on another
			return net.ErrClosed
		default:
		}
		if err := c.handle(req); err != nil {
			return fmt.Errorf("%v: %w", req.op, err)
		}
		c.release()
	}
}

// dialect returns the client's dialect. It peeks at the first bytes. If they are a VALIDATE
// request, it reads that request.
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

// receive reads a request. It waits without a limit for the first byte.
func (c *serverConn) receive(d dialect) (request, error) {
	c.nc.SetReadDeadline(time.Time{})
	if _, err := c.dec.r.Peek(1); err != nil {
		return request{}, err
	}
	c.nc.SetReadDeadline(time.Now().Add(c.s.opts.FrameTimeout))
	req, err := c.dec.request(d)
	return req, c.explain(err)
}

// explain returns the error to log for err, an error of reading a request.
func (c *serverConn) explain(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("request not complete within %v: %w", c.s.opts.FrameTimeout, err)
	}
	return err
}

// handle performs req and writes the reply, or parks a WAIT.
func (c *serverConn) handle(req request) error {
	var (
		t   = c.s.table
		rep reply
		err error
	)
	switch req.op {
	case opValidate:
		return errors.New("a handshake must be the first request of a connection")
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

// reply takes the memory of a reply and writes the reply.
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

// wait replies to a WAIT if its keys exist. Otherwise it parks the WAIT, which then holds
// the memory of the request, and starts a goroutine that replies when the keys exist.
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
			c.nc.Close() // the main goroutine returns the error
		}
	})
	return nil
}

// unpark cancels the parked WAIT, unless its reply is being written, and waits for the end
// of its goroutine.
func (c *serverConn) unpark() {
	if c.parked != nil {
		c.s.table.cancel(c.parked.w)
		<-c.parked.ended
		c.parked = nil
	}
}

// reserve takes n bytes of memory for the current request.
func (c *serverConn) reserve(n int) error {
	if err := c.memory.take(n); err != nil {
		return err
	}
	c.held += n
	return nil
}

// release returns the memory of the current request.
func (c *serverConn) release() {
	c.memory.give(c.held)
	c.held = 0
}
