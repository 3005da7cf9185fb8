package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/handshake"
)

// ClientOptions configure a [Client]. The zero value is a good default.
type ClientOptions struct {
	// Limits bound the requests sent and the replies accepted. The fields about the table
	// are not used.
	Limits Limits

	// Timeout is the timeout of opening a connection, and of every request except waits. Default 60 s.
	Timeout time.Duration

	// Announce counts this process as a worker. A PyTorch process that hosts the store with
	// wait_for_workers waits for all workers.
	Announce bool

	// Member, if not nil, identifies this process. The client then starts every connection with a
	// handshake. If the server rejects it, Dial fails at once with a [*HandshakeError]. Later
	// connections must reach the same server as the first one: if another server has taken its
	// address, the server counts as lost. If Member is nil, the client performs no handshake.
	Member *Member

	// AnyStore also accepts a store without the handshake, such as PyTorch's, in either dialect. See
	// [Client.IsPyTorchStore].
	AnyStore bool

	// Legacy makes the client speak the dialect of PyTorch before 2.1, which the servers of this
	// package accept too. With AnyStore the client detects the server's dialect, and Legacy says which
	// one to try first.
	Legacy bool

	// Waiting, if not nil, is called once if Dial has not reached the server after 3 s. why is the
	// latest reason. Dial keeps trying, and returns only after Waiting has returned.
	Waiting func(why error)

	waitingAfter time.Duration // replaces the constant in tests
}

// A Client is a [Store] that uses a server over TCP.
//
// A connection carries one request at a time. A call opens a new connection if no idle one
// is left. So a process that makes one call at a time has one connection. The client does
// not repeat a failed call. The next call opens a new connection. Without
// [ClientOptions.Member], this may be a connection to another server that has taken the
// address.
//
// If the server process ends, every pending call fails at once. If the server's host
// disappears, calls that wait fail after half a minute (TCP keepalive), and other calls
// after [ClientOptions.Timeout].
type Client struct {
	addr string
	opts ClientOptions

	mu     sync.Mutex
	closed bool
	conns  map[*clientConn]struct{} // all open connections
	idle   []*clientConn            // idle connections, most recently used last
	server handshake.Party          // the server of the first connection; zero before this connection
	rival  error                    // says that another process has the same rank; nil if none has
	why    error                    // why Dial has not reached the server yet
}

// unknownServer represents a server without the handshake.
var unknownServer = handshake.Party{Server: "foreign"}

var _ Store = (*Client)(nil)

// maxIdle is the largest number of idle connections that a client keeps.
const maxIdle = 4

// The pauses between the attempts of Dial double from the first to the last.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// waitingAfter is the time after which Dial calls [ClientOptions.Waiting].
const waitingAfter = 3 * time.Second

// Dial connects to the server at addr, "host:port". If the server is not up yet, Dial
// retries until ctx ends, unless addr is a loopback address and the loopback interface is down.
func Dial(ctx context.Context, addr string, opts *ClientOptions) (*Client, error) {
	c := &Client{addr: addr, conns: make(map[*clientConn]struct{}), why: errors.New("no answer")}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.Limits = c.opts.Limits.withDefaults()
	c.opts.Timeout = cmp.Or(c.opts.Timeout, 60*time.Second)
	start := time.Now()
	err := c.connect(ctx)
	if err == nil && c.opts.Announce {
		// A caller's key k is stored as "/k", so no caller's key is equal to "init/".
		var cn *clientConn
		if cn, err = c.acquire(ctx); err == nil {
			_, err = cn.exchange(ctx, request{op: opAdd, keys: []string{"init/"}, number: 1})
			c.release(cn)
		}
		err = c.explain(ctx, err)
	}
	if err != nil {
		c.Close()
		return nil, &OpError{Op: "dial", Addr: addr, Elapsed: time.Since(start), Err: err}
	}
	return c, nil
}

// connect opens the first connection.
func (c *Client) connect(ctx context.Context) error {
	defer c.reportWait()()
	// last is the error of the last attempt. An attempt that failed because ctx ended does
	// not count, unless something accepted its connection.
	last := errors.New("no attempt made")
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		cn, err := c.acquire(ctx)
		if err == nil {
			c.release(cn)
			return nil
		}
		if errors.As(err, new(*HandshakeError)) {
			return err
		}
		if isLoopbackDown(err) {
			return fmt.Errorf("%w: the loopback interface is down: bring it up, with \"ip link set lo up\"", netError{err, c.addr})
		}
		if d, bounded := ctx.Deadline(); ctx.Err() == nil && (!bounded || time.Now().Before(d)) || errors.As(err, new(*muteError)) {
			last = netError{err, c.addr}
			c.setWhy(last)
		}
		if c.opts.AnyStore && handshake.IsHangUp(err) { // PyTorch's store hangs up on a client of the other dialect
			c.opts.Legacy = !c.opts.Legacy // no other goroutine uses the client yet
		}
		select {
		case <-ctx.Done():
			return &unreachableError{contextError(ctx), last}
		case <-time.After(pause):
		}
	}
}

// isLoopbackDown reports whether a connection failed because the loopback interface is down. Unlike a
// failure of the network, this does not change by waiting.
func isLoopbackDown(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || !errors.Is(err, syscall.ENETUNREACH) {
		return false
	}
	to, ok := op.Addr.(*net.TCPAddr)
	return ok && to.IP.IsLoopback()
}

// reportWait calls opts.Waiting after waitingAfter, unless stop is called before. If opts.Waiting
// runs, stop waits until it has returned.
func (c *Client) reportWait() (stop func()) {
	if c.opts.Waiting == nil {
		return func() {}
	}
	return awake.Notice(cmp.Or(c.opts.waitingAfter, waitingAfter), func() {
		c.mu.Lock()
		why := c.why
		c.mu.Unlock()
		c.opts.Waiting(why)
	})
}

func (c *Client) setWhy(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = err
}

// IsPyTorchStore reports whether the server lacks the handshake, as PyTorch's store does. Every
// process that reaches such a server can read and write the job's values.
func (c *Client) IsPyTorchStore() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server == unknownServer
}

// Rival returns an error if another process with this process's rank is connected to the
// server. The error names both processes. Otherwise Rival returns nil.
func (c *Client) Rival() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rival
}

func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, "set", []string{key}, [][]byte{value}, func(cn *clientConn, k []string) error {
		return cn.tell(ctx, request{op: opSet, keys: k, values: [][]byte{value}})
	})
}

func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	values, err := c.get(ctx, "get", opGet, []string{key})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	err = c.do(ctx, "add", []string{key}, nil, func(cn *clientConn, k []string) error {
		rep, err := cn.exchange(ctx, request{op: opAdd, keys: k, number: delta})
		sum = rep.number
		return err
	})
	return sum, err
}

func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	return c.do(ctx, "wait", keys, nil, func(cn *clientConn, k []string) error {
		return cn.wait(ctx, k)
	})
}

func (c *Client) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = c.do(ctx, "delete", []string{key}, nil, func(cn *clientConn, k []string) error {
		rep, err := cn.exchange(ctx, request{op: opDelete, keys: k})
		existed = rep.number == 1
		return err
	})
	return existed, err
}

func (c *Client) Check(ctx context.Context, keys ...string) (exist bool, err error) {
	if len(keys) == 0 {
		return true, nil
	}
	err = c.do(ctx, "check", keys, nil, func(cn *clientConn, k []string) error {
		exist, err = cn.check(ctx, k)
		return err
	})
	return exist, err
}

// Close ends every connection of the client. It returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for cn := range c.conns {
		cn.nc.Close()
	}
	clear(c.conns)
	c.idle = nil
	return nil
}

// get waits for keys and reads their values. The server returns an empty value for a key
// that does not exist. So if a value is empty, get checks whether the key was deleted after
// the wait, and waits again if so.
func (c *Client) get(ctx context.Context, name string, op opcode, keys []string) (values [][]byte, err error) {
	err = c.do(ctx, name, keys, nil, func(cn *clientConn, k []string) error {
		for {
			if err := cn.wait(ctx, k); err != nil {
				return err
			}
			rep, err := cn.exchange(ctx, request{op: op, keys: k})
			if err != nil {
				return err
			}
			exist := true
			if empty := emptyOf(k, rep.values); len(empty) > 0 {
				if exist, err = cn.check(ctx, empty); err != nil {
					return err
				}
			}
			if exist {
				values = rep.values
				return nil
			}
		}
	})
	return values, err
}

// emptyOf returns the keys whose value is empty.
func emptyOf(keys []string, values [][]byte) (empty []string) {
	for i, v := range values {
		if len(v) == 0 {
			empty = append(empty, keys[i])
		}
	}
	return empty
}

// do calls f with a connection and the keys as they are sent. It wraps f's error in an OpError.
func (c *Client) do(ctx context.Context, op string, keys []string, values [][]byte, f func(*clientConn, []string) error) error {
	start := time.Now()
	names := prefixKeys(keys)
	err := c.opts.Limits.check(names, values)
	if err == nil {
		var cn *clientConn
		if cn, err = c.acquire(ctx); err == nil {
			err = f(cn, names)
			c.release(cn)
		}
		if err = c.explain(ctx, err); errors.Is(err, ErrServerLost) {
			c.dropIdle()
		}
	}
	if err != nil {
		return &OpError{Op: op, Keys: keys, Addr: c.addr, Elapsed: time.Since(start), Err: err}
	}
	return nil
}

// explain returns the error that a caller gets for err, the error of an exchange.
func (c *Client) explain(ctx context.Context, err error) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case closed:
		return ErrClosed
	case errors.As(err, new(*HandshakeError)):
		return err
	case ctx.Err() != nil:
		return contextError(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: no answer within %v", ErrServerLost, c.opts.Timeout)
	}
	return fmt.Errorf("%w: %w", ErrServerLost, netError{err, c.addr})
}

// acquire returns an idle connection or opens a new one. The caller must pass it to
// release.
func (c *Client) acquire(ctx context.Context) (*clientConn, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	if cn, err := c.takeIdle(); cn != nil || err != nil {
		return cn, err
	}
	dialCtx, cancel := awake.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4,
	}}
	nc, err := dialer.DialContext(dialCtx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	cn := newClientConn(nc, &c.opts)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		nc.Close()
		return nil, ErrClosed
	}
	c.conns[cn] = struct{}{}
	c.why = &muteError{} // the reason while the handshake has not ended
	c.mu.Unlock()
	if err = c.introduce(dialCtx, cn); err != nil {
		cn.inStep = false
		c.release(cn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = &muteError{err}
		}
		return nil, err
	}
	return cn, nil
}

// introduce performs the handshake on a new connection, and checks that the server is the same as on
// the first connection.
func (c *Client) introduce(ctx context.Context, cn *clientConn) error {
	m := c.opts.Member
	if m == nil {
		return cn.open(ctx)
	}
	server, rival, err := cn.shakeHands(ctx, m)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.server.Server != ""
	switch {
	case err != nil && known && !refusedBy(c.server.Process, err):
		return fmt.Errorf("a different store now listens at this address: %v", err)
	case err != nil:
		return err
	case server == unknownServer && !c.opts.AnyStore:
		return &HandshakeError{errPyTorchStore}
	case known && c.server.Server != server.Server:
		return errors.New("a different store now listens at this address")
	}
	c.server = server
	if rival != nil && c.rival == nil {
		c.rival = &handshake.RivalError{Rank: m.Rank, First: *rival, Second: handshake.ThisProcess()}
	}
	return nil
}

// refusedBy reports whether err says that process p rejected the handshake.
func refusedBy(p handshake.Process, err error) bool {
	var refused *handshake.RefusedError
	return errors.As(err, &refused) && refused.By.ID == p.ID
}

// takeIdle takes an idle connection; it returns nil if there is none.
func (c *Client) takeIdle() (*clientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	n := len(c.idle)
	if n == 0 {
		return nil, nil
	}
	cn := c.idle[n-1]
	c.idle = c.idle[:n-1]
	return cn, nil
}

// dropIdle closes the idle connections. It is called when the server is lost, because
// they are probably broken too.
func (c *Client) dropIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cn := range c.idle {
		delete(c.conns, cn)
		cn.nc.Close()
	}
	c.idle = nil
}

// release keeps cn as an idle connection, or closes it if it is of no more use.
func (c *Client) release(cn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cn.inStep && !c.closed && len(c.idle) < maxIdle {
		c.idle = append(c.idle, cn)
		return
	}
	delete(c.conns, cn)
	cn.nc.Close()
}
