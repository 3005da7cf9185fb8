package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/handshake"
)

// ClientOptions configure a [Client]. The zero value is a good default.
type ClientOptions struct {
	// Limits bound the requests sent and the replies accepted. Its fields on
	// the table are not used.
	Limits Limits

	// Timeout bounds the opening of a connection and every request that the
	// server answers at once, that is all but the waits. Default 60 s.
	Timeout time.Duration

	// Announce counts this process among the workers that a PyTorch process
	// hosting the store with wait_for_workers waits for.
	Announce bool

	// Member, if not nil, is who this process is: every connection is opened by a
	// handshake. A refusal ends Dial at once, with a [*HandshakeError]. Connections
	// are of use with the server of the first one alone: one that took the address
	// since counts as lost. nil: the client does not introduce itself.
	Member *Member

	// AnyStore takes also a store that knows no handshake, as PyTorch's: see
	// [Client.IsPyTorchStore].
	AnyStore bool

	// Legacy speaks the dialect of PyTorch before 2.1, to a store hosted by
	// one. Our own servers take either.
	Legacy bool
}

// A Client is a [Store] on a server across TCP.
//
// It makes one request at a time on a connection and opens another when a call
// finds none idle. So a call that waits keeps its connection to itself, and a
// process that makes one call at a time has one connection. No call is repeated
// on failure, but the call after a failure opens a new connection, be it to a server
// that took the address since: [ClientOptions.Member] forbids that.
//
// A server process that ends fails every pending call at once. A host that
// vanishes without a word fails those that wait after half a minute (TCP
// keepalive) and all others after [ClientOptions.Timeout].
type Client struct {
	addr string
	opts ClientOptions

	mu     sync.Mutex
	closed bool
	conns  map[*clientConn]struct{} // all that are open
	idle   []*clientConn            // those of them that no call uses, most recent last
	server handshake.Party          // once it is known
	rival  error                    // another process bears this one's rank
}

// unknownServer stands for a server that is not ours.
var unknownServer = handshake.Party{Server: "foreign"}

var _ Store = (*Client)(nil)

// maxIdle is how many connections a client keeps for later calls.
const maxIdle = 4

// The pauses between the attempts of Dial double from the first to the last.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// Dial connects to the server at addr, "host:port". The server need not be up
// yet: Dial tries until ctx ends.
func Dial(ctx context.Context, addr string, opts *ClientOptions) (*Client, error) {
	c := &Client{addr: addr, conns: make(map[*clientConn]struct{})}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.Limits = c.opts.Limits.withDefaults()
	c.opts.Timeout = cmp.Or(c.opts.Timeout, 60*time.Second)
	start := time.Now()
	err := c.connect(ctx)
	if err == nil && c.opts.Announce {
		// Once, and not under the slash that callers' keys have.
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
	last := errors.New("no attempt made") // why the last attempt failed that ctx did not cut short, or that reached somebody
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		cn, err := c.acquire(ctx)
		if err == nil {
			c.release(cn)
			return nil
		}
		if errors.As(err, new(*HandshakeError)) {
			return err
		}
		if d, bounded := ctx.Deadline(); ctx.Err() == nil && (!bounded || time.Now().Before(d)) || errors.As(err, new(*muteError)) {
			last = netError{err, c.addr}
		}
		select {
		case <-ctx.Done():
			return &unreachableError{contextError(ctx), last}
		case <-time.After(pause):
		}
	}
}

// IsPyTorchStore reports whether the server knows no handshake: whoever reaches it can read
// and write all that the job has there.
func (c *Client) IsPyTorchStore() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server == unknownServer
}

// Rival returns an error that names this process and another, if the server knows that
// one under this one's rank and has a connection with it, else nil.
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

func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	values := [][]byte{expected, desired}
	err = c.do(ctx, "compareandset", []string{key}, values, func(cn *clientConn, k []string) error {
		rep, err := cn.exchange(ctx, request{op: opCompareSet, keys: k, values: values})
		if err == nil {
			now = rep.values[0]
		}
		return err
	})
	return now, err
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

func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, "append", []string{key}, [][]byte{value}, func(cn *clientConn, k []string) error {
		return cn.tell(ctx, request{op: opAppend, keys: k, values: [][]byte{value}})
	})
}

func (c *Client) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	return c.get(ctx, "multiget", opMultiGet, keys)
}

func (c *Client) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		panic(&lengthError{len(keys), len(values)})
	}
	if len(keys) == 0 {
		return nil
	}
	return c.do(ctx, "multiset", keys, values, func(cn *clientConn, k []string) error {
		return cn.tell(ctx, request{op: opMultiSet, keys: k, values: values})
	})
}

func (c *Client) NumKeys(ctx context.Context) (n int64, err error) {
	err = c.do(ctx, "numkeys", nil, nil, func(cn *clientConn, _ []string) error {
		rep, err := cn.exchange(ctx, request{op: opNumKeys})
		n = rep.number
		return err
	})
	return n, err
}

// ping asks the server for a sign of life. Stores hosted by early PyTorch 2.x
// do not know the request and end the connection, as with all that they refuse.
func (c *Client) ping(ctx context.Context) error {
	return c.do(ctx, "ping", nil, nil, func(cn *clientConn, _ []string) error {
		const nonce = 0x676f6464 // any
		rep, err := cn.exchange(ctx, request{op: opPing, number: nonce})
		if err == nil && rep.number != nonce {
			err = fmt.Errorf("ping of %#x answered with %#x", nonce, rep.number)
		}
		return err
	})
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

// get waits for keys and reads their values. The server answers a read of an
// absent key with an empty value, so an empty value is read again if its key
// turns out to have been deleted since the wait.
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

// do runs f on a connection, with the wire's names of keys, and gives its error
// the call's details.
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

// explain tells the causes of a failed exchange apart.
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

// acquire takes an idle connection or opens one. The caller hands it to release.
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

// introduce performs the handshake on a new connection, and makes sure that it is with
// the server that the first one was with.
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
		return fmt.Errorf("another server is there now: %v", err)
	case err != nil:
		return err
	case server == unknownServer && !c.opts.AnyStore:
		return &HandshakeError{errPyTorchStore}
	case known && c.server.Server != server.Server:
		return errors.New("another server is there now")
	}
	c.server = server
	if rival != nil && c.rival == nil {
		c.rival = &handshake.RivalError{Rank: m.Rank, First: *rival, Second: handshake.ThisProcess()}
	}
	return nil
}

// refusedBy reports whether err is a process's refusal.
func refusedBy(p handshake.Process, err error) bool {
	var refused *handshake.RefusedError
	return errors.As(err, &refused) && refused.By.ID == p.ID
}

// takeIdle returns nil if no connection is idle.
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

// dropIdle closes the idle connections: what broke one may have broken them too.
func (c *Client) dropIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cn := range c.idle {
		delete(c.conns, cn)
		cn.nc.Close()
	}
	c.idle = nil
}

// release keeps cn for later calls, or closes it.
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
