package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/callstate"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// defaultTimeout is the timeout of the bootstrap if Config.Timeout is 0.
const defaultTimeout = 10 * time.Minute

// Group is one rank's handle of a group with tensors in host memory. It implements
// [backend.Backend].
type Group struct {
	cfg  backend.Config
	opts Options
	log  *slog.Logger

	net     network       // the connections to the peers
	scratch reduceScratch // used only by the collectives queue

	state *callstate.State // counts pending calls and knows why the group broke
	ctx   context.Context  // state.Context()

	mu     sync.Mutex         // held while a call is enqueued
	stream *taskQueue         // runs the collectives
	sends  map[int]*taskQueue // by peer; each queue is created at its first use
	recvs  map[int]*taskQueue

	wg          sync.WaitGroup // counts the goroutines that run queues
	failureWait sync.WaitGroup // counts the goroutine that runs awaitFailure
}

var _ backend.Backend = (*Group)(nil)

// network is the transport of a group: in one process, or over connections and shared memory. run,
// send and recv block until they are done or the group's context ends. run is called from one
// goroutine at a time, and so are send and recv per peer.
type network interface {
	// run executes a collective.
	run(p *plan) error
	send(c *backend.Call, data []byte) error
	recv(c *backend.Call, data []byte) error
	// waitingFor returns the ranks that the running collective waits for.
	waitingFor() []int
	// alloc returns zeroed memory. The peers can access it directly if the ranks share memory.
	alloc(size int) (device.Buffer, error)
	// markBroken notifies peers that access this rank's memory that its content may change from now
	// on.
	markBroken()
	// wake makes blocked calls return. It is called after the group's context has ended.
	wake()
	// close releases all resources. No other method may be running. If orderly is true, peers find
	// out that this rank left without a failure; the caller has notified the coordinator.
	close(orderly bool)
}

func newGroup(ctx context.Context, cfg backend.Config, opts *Options) *Group {
	g := &Group{cfg: cfg, log: cfg.Log, state: callstate.New(ctx, cfg.Control), stream: newTaskQueue(), sends: map[int]*taskQueue{}, recvs: map[int]*taskQueue{}}
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

// open starts the group's goroutines. The network must be complete.
func (g *Group) open() {
	g.launch(g.stream, func(t *task) error {
		t.plan.premultiply()
		return g.net.run(t.plan)
	})
	g.failureWait.Go(g.awaitFailure)
}

// Name returns "host".
func (g *Group) Name() string { return "host" }

// Alloc returns zeroed memory that the ranks on this host can reduce in place, without a copy. If
// the host does not have enough memory, the error is a [*device.OutOfMemoryError].
func (g *Group) Alloc(size int) (device.Buffer, error) { return g.net.alloc(size) }

// Start enqueues a call. It panics with a [*MemoryError] if a tensor is not in host memory.
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
			part.plan = newPlan(part.call, g.cfg.Rank, g.cfg.Control.Members, &g.scratch)
		}
	}
	if err := g.enqueue(t, parts); err != nil {
		if g.state.Cause() != nil {
			<-g.ctx.Done() // soon; the program may exit on this error, so the peers must learn the cause first
		}
		return nil, err
	}
	if len(parts) == 0 { // an empty Group
		t.finish(nil)
	}
	return t, nil
}

// enqueue enqueues all parts of t or none. A call that is not a Group has one part, t itself.
func (g *Group) enqueue(t *task, parts []*task) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.state.Admit(1); err != nil {
		return err
	}
	for _, part := range parts {
		g.queueFor(part.call).put(part)
	}
	return nil
}

// queueFor returns the queue that runs calls like c. The caller must hold g.mu.
func (g *Group) queueFor(c *backend.Call) *taskQueue {
	queues, run := g.recvs, func(t *task) error { return g.net.recv(t.call, t.data) }
	switch c.Kind {
	case backend.Send:
		queues, run = g.sends, func(t *task) error { return g.net.send(t.call, t.data) }
	case backend.Recv:
	default:
		return g.stream
	}
	q := queues[c.Root]
	if q == nil {
		q = newTaskQueue()
		queues[c.Root] = q
		g.launch(q, run)
	}
	return q
}

func (g *Group) launch(q *taskQueue, run func(*task) error) {
	g.wg.Go(func() { q.loop(func(t *task) { g.execute(t, run) }) })
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

// await waits for the After events of t's call and of its Group.
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

// failed reports that t failed with err, and waits until the group is broken. It returns t's error,
// which wraps the coordinator's cause.
func (g *Group) failed(t *task, err error) error {
	g.state.Report(g.state.CallError(t.call, err), ranksToAsk(err)...)
	<-g.ctx.Done()
	return g.state.ErrorOf(t.call)
}

// awaitFailure breaks the group when the coordinator has decided on a cause. It ends pending calls
// only after the peers know the cause, because the process may exit as soon as a call fails.
func (g *Group) awaitFailure() {
	select {
	case <-g.cfg.Control.Failed():
	case <-g.ctx.Done(): // the group was closed
		return
	}
	cause := g.state.DecidedCause()
	if !g.state.Break(cause) {
		return
	}
	g.log.Debug("process group broke", "rank", g.cfg.Rank, "cause", cause)
	g.net.markBroken()
	if !g.cfg.Control.Lost() {
		g.state.AwaitAcknowledged()
	}
	g.state.Stop(cause)
	g.net.wake()
}

// Abort breaks the group with cause, or with [failure.ErrAborted] if cause is nil. When it returns,
// the peers know why the group broke, which may be an earlier cause.
func (g *Group) Abort(cause error) {
	g.state.Abort(cause)
	<-g.ctx.Done()
}

// Split creates a group of some of this group's ranks, which find each other through cfg.Control.
// If this group breaks in the meantime, Split fails with the cause.
func (g *Group) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	if cfg.Size != len(members) || members[cfg.Rank] != g.cfg.Rank {
		panic(fmt.Errorf("host: rank %d of %d cannot be rank %d of the %d members %v", g.cfg.Rank, g.cfg.Size, cfg.Rank, cfg.Size, members))
	}
	ctx, release := backend.Bound(ctx, g.ctx)
	defer release()
	return New(ctx, cfg, &g.opts)
}

// Close waits for pending calls while ctx lasts, and ends the group. If calls are pending when ctx
// ends, they fail with ErrClosed and Close returns an error.
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
	queues := []*taskQueue{g.stream}
	for _, q := range g.sends {
		queues = append(queues, q)
	}
	for _, q := range g.recvs {
		queues = append(queues, q)
	}
	g.mu.Unlock()
	for _, q := range queues {
		q.end()
	}
	g.wg.Wait()
	orderly := g.state.Finalize() == nil
	if orderly {
		g.cfg.Control.Depart() // a peer that still needs this rank learns from the coordinator that it left
		g.state.Stop(failure.ErrClosed)
	}
	g.failureWait.Wait()
	g.net.close(orderly)
	return err
}
