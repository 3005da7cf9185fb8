package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/backend/ledger"
	"github.com/goddp/goddp/device"
)

// defaultTimeout bounds the making of a group that nothing else bounds.
const defaultTimeout = 10 * time.Minute

// Group is one rank's end of a group of ranks whose tensors are in host
// memory. It implements [backend.Backend].
type Group struct {
	cfg  backend.Config
	opts Options
	log  *slog.Logger

	net    network // reaches the peers
	blocks blocks  // of the collectives' lane

	ledger *ledger.Ledger  // of started tasks that are not done
	ctx    context.Context // the ledger's

	mu     sync.Mutex    // held while a call is put in its lanes
	stream *lane         // collectives
	sends  map[int]*lane // by peer, made when first used
	recvs  map[int]*lane

	wg sync.WaitGroup // the lanes
}

var _ backend.Backend = (*Group)(nil)

// network is how the ranks of a group reach each other: in one process, or
// over connections and shared memory. The methods that take a plan or data
// block until they are done or the group's context has ended; run, send and
// recv of one direction and peer are each called by one goroutine at a time.
type network interface {
	// run does a collective.
	run(p *plan) error
	send(c *backend.Call, data []byte) error
	recv(c *backend.Call, data []byte) error
	// missing is the ranks that a collective under way waits for.
	missing() []int
	// ask asks the peers whom their collectives wait for, and returns what those say
	// that answer before ctx ends.
	ask(ctx context.Context) map[int][]int
	// alloc returns zeroed memory that the peers can reach, if there is such.
	alloc(size int) (device.Buffer, error)
	// tell tells the peers why the group broke: when it returns their hosts have
	// it, those that answer.
	tell(cause error)
	// quiet tells whether no peer has told that.
	quiet() bool
	// wake makes blocked calls return, the group's context having ended.
	wake()
	// close tells the peers that this rank left in good order, if orderly,
	// and releases everything. Nothing else runs any more.
	close(orderly bool)
}

func newGroup(cfg backend.Config, opts *Options) *Group {
	g := &Group{cfg: cfg, log: cfg.Log, ledger: ledger.New(cfg.Control), stream: newLane(), sends: map[int]*lane{}, recvs: map[int]*lane{}}
	if opts != nil {
		g.opts = *opts
	}
	if g.cfg.Timeout <= 0 {
		g.cfg.Timeout = defaultTimeout
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.ctx = g.ledger.Context()
	return g
}

// open starts the collectives' lane: the network is there.
func (g *Group) open() {
	g.launch(g.stream, func(t *task) error {
		t.plan.premultiply()
		return g.net.run(t.plan)
	})
}

// Name is "host".
func (g *Group) Name() string { return "host" }

// Alloc returns zeroed memory that the ranks on this host reduce where it
// lies, without a copy. It fails with a [*device.OutOfMemoryError] when the host has
// not got as much.
func (g *Group) Alloc(size int) (device.Buffer, error) { return g.net.alloc(size) }

// Start enqueues a call. It panics with a [*MemoryError] when a tensor is not
// in host memory.
func (g *Group) Start(c *backend.Call) (backend.Task, error) {
	t := &task{group: g, call: c, done: make(chan struct{})}
	parts := []*task{t}
	if c.Kind == backend.Group {
		parts, t.parts = parts[:0], len(c.Calls)
		for _, part := range c.Calls {
			parts = append(parts, &task{group: g, call: part, parent: t, done: make(chan struct{})})
		}
	}
	for _, part := range parts {
		switch part.call.Kind {
		case backend.Send:
			part.data = hostBytes(part.call, part.call.Src)
		case backend.Recv:
			part.data = hostBytes(part.call, part.call.Dst)
		default:
			part.plan = newPlan(part.call, g.cfg.Rank, g.cfg.Size, &g.blocks)
		}
	}
	if err := g.enqueue(t, parts); err != nil {
		if g.ledger.Cause() != nil {
			<-g.ctx.Done() // soon: the peers have been told, and the program may end for this error
		}
		return nil, err
	}
	if len(parts) == 0 { // a Group of nothing
		t.finish(nil)
	}
	return t, nil
}

// enqueue puts the parts of t, or t itself, in their lanes, all or none.
func (g *Group) enqueue(t *task, parts []*task) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ledger.Admit(); err != nil {
		return err
	}
	for _, part := range parts {
		g.lane(part.call).put(part)
	}
	return nil
}

// lane is where calls such as c wait for their turn. The caller holds g.mu.
func (g *Group) lane(c *backend.Call) *lane {
	lanes, run := g.recvs, func(t *task) error { return g.net.recv(t.call, t.data) }
	switch c.Kind {
	case backend.Send:
		lanes, run = g.sends, func(t *task) error { return g.net.send(t.call, t.data) }
	case backend.Recv:
	default:
		return g.stream
	}
	l := lanes[c.Root]
	if l == nil {
		l = newLane()
		lanes[c.Root] = l
		g.launch(l, run)
	}
	return l
}

func (g *Group) launch(l *lane, run func(*task) error) {
	g.wg.Go(func() { l.loop(func(t *task) { g.execute(t, run) }) })
}

// execute runs a task whose turn has come.
func (g *Group) execute(t *task, run func(*task) error) {
	err := g.ledger.Cause()
	if err == nil {
		err = g.await(t)
	}
	if err == nil {
		t.begin()
		err = run(t)
	}
	if err != nil {
		err = g.failed(t, err)
	}
	t.finish(err)
}

// await waits for the event that t's call comes after, and its Group's.
func (g *Group) await(t *task) error {
	for ; t != nil; t = t.parent {
		if e := t.call.After; e != nil {
			if done, err := e.Done(); done || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			if err := e.Sync(g.ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// failed breaks the group because of what happened to t, unless it broke
// before, and returns t's error: the first cause, as it concerns t.
func (g *Group) failed(t *task, err error) error {
	g.fail(g.ledger.Failure(t.call, err))
	<-g.ctx.Done() // whoever broke the group has told the peers
	return g.ledger.Concerning(t.call)
}

// fail breaks the group, once. The peers are told before any call ends, so
// that they hear the cause even if this process ends with its call.
func (g *Group) fail(cause error) {
	if !g.ledger.Break(cause) {
		return
	}
	g.log.Debug("process group broke", "rank", g.cfg.Rank, "cause", cause)
	g.net.tell(cause)
	g.ledger.Stop(cause)
	g.net.wake()
}

// Abort breaks the group with cause, or [backend.ErrAborted] if that is nil. When it
// returns the peers have been told why the group broke, be it for another cause.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = backend.ErrAborted
	}
	g.fail(cause)
	<-g.ctx.Done() // soon: whoever broke it tells them
}

// Quiet tells whether no other rank has told that its group broke. What has
// reached this host, and has not been read yet, counts as told; and a rank that
// breaks has reached all hosts before an Abort, or a call's error, returns there.
// So what a rank did after that cannot be seen here before Quiet is false. It is
// false wherever the operating system does not say what is unread.
func (g *Group) Quiet() bool { return g.net.quiet() }

// Split makes a group of some of this group's ranks; it finds them through
// cfg.Store. When this group breaks nobody is waited for any more.
func (g *Group) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	if cfg.Size != len(members) || members[cfg.Rank] != g.cfg.Rank {
		panic(fmt.Errorf("host: rank %d of %d cannot be rank %d of the %d members %v", g.cfg.Rank, g.cfg.Size, cfg.Rank, cfg.Size, members))
	}
	ctx, release := backend.Bound(ctx, g.ctx)
	defer release()
	return New(ctx, cfg, &g.opts)
}

// Close waits, while ctx lasts, for pending calls, and ends the group. Calls
// that are then still pending end with ErrClosed. The error is that the calls
// did not end by themselves.
func (g *Group) Close(ctx context.Context) error {
	if !g.ledger.Close() {
		return nil
	}
	err := g.ledger.Drain(ctx)
	if err != nil {
		g.fail(err)
		err = g.ledger.Cause()
	}
	g.mu.Lock()
	lanes := []*lane{g.stream}
	for _, l := range g.sends {
		lanes = append(lanes, l)
	}
	for _, l := range g.recvs {
		lanes = append(lanes, l)
	}
	g.mu.Unlock()
	for _, l := range lanes {
		l.end()
	}
	g.wg.Wait()
	orderly := g.ledger.Settle() == nil
	if !orderly {
		<-g.ctx.Done() // the peers have been told
	}
	g.net.close(orderly)
	g.ledger.Stop(backend.ErrClosed)
	return err
}
