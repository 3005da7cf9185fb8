package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/callstate"
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

	state *callstate.State // of started tasks that are not done
	ctx   context.Context  // the state's

	mu     sync.Mutex    // held while a call is put in its lanes
	stream *lane         // collectives
	sends  map[int]*lane // by peer, made when first used
	recvs  map[int]*lane

	wg   sync.WaitGroup // the lanes
	heed sync.WaitGroup // awaitFailure
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
	// alloc returns zeroed memory that the peers can reach, if there is such.
	alloc(size int) (device.Buffer, error)
	// breaks tells the peers that read this rank's memory that it may change from
	// now on.
	breaks()
	// wake makes blocked calls return, the group's context having ended.
	wake()
	// close releases everything. Nothing else runs any more. If orderly, the peers
	// find that this rank left; the coordinator has been told.
	close(orderly bool)
}

func newGroup(cfg backend.Config, opts *Options) *Group {
	g := &Group{cfg: cfg, log: cfg.Log, state: callstate.New(cfg.Control), stream: newLane(), sends: map[int]*lane{}, recvs: map[int]*lane{}}
	if opts != nil {
		g.opts = *opts
	}
	if g.cfg.Timeout <= 0 {
		g.cfg.Timeout = defaultTimeout
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.ctx = g.state.Context()
	return g
}

// open starts the group's goroutines: the network is there.
func (g *Group) open() {
	g.launch(g.stream, func(t *task) error {
		t.plan.premultiply()
		return g.net.run(t.plan)
	})
	g.heed.Go(g.awaitFailure)
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
			part.plan = newPlan(part.call, g.cfg.Rank, g.cfg.Control.Members, &g.blocks)
		}
	}
	if err := g.enqueue(t, parts); err != nil {
		if g.state.Cause() != nil {
			<-g.ctx.Done() // soon: the peers know by then, and the program may end for this error
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
	if err := g.state.Admit(); err != nil {
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
	err := g.state.Cause()
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

// failed reports that t failed by err, and waits until the group has broken. It returns t's
// error, which wraps what the coordinator decided.
func (g *Group) failed(t *task, err error) error {
	g.state.Report(g.state.CallError(t.call, err), asked(err)...)
	<-g.ctx.Done()
	return g.state.ErrorOf(t.call)
}

// awaitFailure breaks the group once the coordinator has decided why. No call ends for it
// before the peers know: they hear the cause even if this process ends with its call.
func (g *Group) awaitFailure() {
	select {
	case <-g.cfg.Control.Failed():
	case <-g.ctx.Done(): // closed
		return
	}
	cause := g.state.DecidedCause()
	if !g.state.Break(cause) {
		return
	}
	g.log.Debug("process group broke", "rank", g.cfg.Rank, "cause", cause)
	g.net.breaks()
	if !g.cfg.Control.Lost() {
		g.state.AwaitAcknowledged()
	}
	g.state.Stop(cause)
	g.net.wake()
}

// Abort breaks the group with cause, or [backend.ErrAborted] if that is nil. When it
// returns the peers know why the group broke, be it for another cause.
func (g *Group) Abort(cause error) {
	g.state.Abort(cause)
	<-g.ctx.Done()
}

// Split makes a group of some of this group's ranks; it finds them through
// cfg.Control. When this group breaks nobody is waited for any more.
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
	if !g.state.Close() {
		return nil
	}
	err := g.state.Drain(ctx)
	if err != nil {
		g.state.Abort(err)
		<-g.ctx.Done()
		err = g.state.Cause()
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
	orderly := g.state.Finalize() == nil
	if orderly {
		g.cfg.Control.Depart() // who misses this rank asks the coordinator
		g.state.Stop(backend.ErrClosed)
	}
	g.heed.Wait()
	g.net.close(orderly)
	return err
}
