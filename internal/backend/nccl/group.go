//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/callstate"
	"github.com/goddp/goddp/internal/coordinator"
)

// Group is one rank's end of a group of GPUs. It implements
// [backend.Backend].
type Group struct {
	cfg    backend.Config
	opts   Options
	dev    cudaDevice
	lib    *library
	memory *memory
	main   *lane    // of everything but Send and Recv
	shot   *oneShot // of main; nil: the ranks are too many or too far from each other

	state    *callstate.State // of started calls that are not done
	ctx      context.Context  // the state's
	wake     chan struct{}    // of one: a call was started while watch slept
	asleep   atomic.Bool      // watch does not look at calls
	wg       sync.WaitGroup   // what runs until the group ends, or a bounded time more
	timed    atomic.Bool      // somebody asked for a time: calls are timed
	stuck    atomic.Bool      // a thread was left in C, which may still use what the group has
	reported atomic.Bool      // this rank has said why the group is to break

	// begun is when the group's clock began, the monotonic one: reading that alone
	// takes half as long. Dates miss what the wall clock was set by since.
	begun time.Time

	// mu is held where the group breaks and settles: whether it is broken does
	// not change under it.
	mu    sync.Mutex
	lanes []*lane
	sends map[int]*lane // by peer, made when first used
	recvs map[int]*lane
	comms []*communicator
	word  device.Buffer // for Barrier

	gone       map[int]progress // ranks that left alone
	departures []departure      // those of them that this rank has not let go
}

var _ backend.Backend = (*Group)(nil)

func newGroup(cfg backend.Config, o Options, dev cudaDevice) *Group {
	g := &Group{
		cfg: cfg, opts: o, dev: dev, memory: memoryOf(dev), state: callstate.New(cfg.Control), wake: make(chan struct{}, 1),
		begun: time.Now(), sends: map[int]*lane{}, recvs: map[int]*lane{}, gone: map[int]progress{},
	}
	g.ctx = g.state.Context()
	return g
}

// inJob is a rank of the group as the job numbers it.
func (g *Group) inJob(rank int) int { return g.cfg.Control.Members[rank] }

// now is the time on the group's clock, never 0.
func (g *Group) now() time.Duration { return max(1, time.Since(g.begun)) }

// Name is "nccl".
func (g *Group) Name() string { return "nccl" }

// communicator makes one that ends with the group, with or without a shot.
func (g *Group) communicator(ctx context.Context, id []byte, rank, size int, shot *oneShot) (*communicator, error) {
	c, err := g.lib.connect(ctx, id, rank, size, shot)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.comms = append(g.comms, c)
	if g.state.Cause() != nil { // too late for those that are being aborted
		g.wg.Go(func() { g.end((*communicator).abort, c) })
	}
	return c, nil
}

// Start enqueues a call.
func (g *Group) Start(c *backend.Call) (backend.Task, error) {
	t := &task{group: g, call: c}
	l, err := g.admit(t)
	if err != nil {
		if g.state.Cause() != nil {
			<-g.ctx.Done() // soon: the others have been told then, and the program may end for this error
		}
		return nil, err
	}
	l.submit(t)
	if g.asleep.Load() && g.asleep.CompareAndSwap(true, false) { // waking it costs a good part of what NCCL takes
		g.wake <- struct{}{}
	}
	return t, nil
}

// admit counts a call as pending, unless the group has ended, and tells where
// it runs.
func (g *Group) admit(t *task) (*lane, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.state.Admit(); err != nil {
		return nil, err
	}
	l, err := g.lane(t.call)
	if err != nil {
		g.state.End()
		return nil, err
	}
	l.pending = append(l.pending, t)
	l.started++
	t.lane, t.number = l, l.started
	g.memory.busy.Add(1)
	return l, nil
}

// lane is where a call runs: Send and Recv with a peer on lanes of their own,
// made when first used. mu is held.
func (g *Group) lane(c *backend.Call) (*lane, error) {
	lanes, p, rank := g.recvs, pair{from: c.Root, to: g.cfg.Rank}, 1
	switch c.Kind {
	case backend.Send:
		lanes, p, rank = g.sends, pair{from: g.cfg.Rank, to: c.Root}, 0
	case backend.Recv:
	default:
		return g.main, nil
	}
	if l := lanes[c.Root]; l != nil {
		return l, nil
	}
	l, err := g.newLane()
	if err != nil {
		return nil, err
	}
	l.pair, l.layout = &p, layout{rank: rank, size: 2, pair: true}
	lanes[c.Root] = l
	return l, nil
}

// finish ends a pending call. mu is held.
func (g *Group) finish(t *task, err error) {
	t.state, t.err, t.ended = backend.Done, err, g.now()
	if err != nil {
		t.state = backend.Failed
	}
	if o := t.call.Observer; o != nil {
		o.Ended(g.begun.Add(t.ended), err)
	}
	t.lane.ended++
	if len(g.departures) > 0 {
		g.letGo()
	}
	g.memory.busy.Add(-1)
	g.state.End()
}

// fail reports why the group is to break, and returns when it has. What was done before counts.
func (g *Group) fail(cause error) {
	if g.cfg.Control.Failure() == nil && !g.reported.Swap(true) {
		g.lookAgain()
		var asked []int
		var lost *backend.PeerLostError
		if errors.As(cause, &lost) {
			asked = []int{lost.Peer}
		}
		g.state.Report(cause, asked...)
	}
	<-g.ctx.Done()
}

// heed breaks the group when it has failed. The other ranks know before any call ends with
// the cause, since the program may end for that, and before the communicators are aborted.
func (g *Group) heed() {
	control := g.cfg.Control
	select {
	case <-control.Failed():
	case <-g.ctx.Done(): // closed
		return
	}
	cause := g.state.DecidedCause()
	g.cfg.Log.Debug("nccl: process group broke", "rank", control.Rank(), "cause", cause)
	g.mu.Lock()
	broke := g.state.Break(cause)
	g.mu.Unlock()
	if !broke {
		return
	}
	g.state.AwaitAcknowledged()
	g.memory.busy.Add(1)
	g.mu.Lock()
	for _, l := range g.lanes {
		for _, t := range l.pending {
			if t.state < backend.Done {
				g.finish(t, g.state.ErrorOf(t.call))
			}
		}
		l.pending = nil
	}
	comms := g.comms
	g.mu.Unlock()
	g.state.Stop(cause)
	g.end((*communicator).abort, comms...)
	g.mu.Lock()
	for _, l := range g.lanes {
		if l.last != nil { // a one-shot's kernel may run still
			g.memory.behind(l.last)
		}
	}
	g.mu.Unlock()
	g.memory.busy.Add(-1)
}

// lookAgain brings the states of all calls up to date, if the driver lets it.
func (g *Group) lookAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	_, err := detach(ctx, func() (struct{}, error) {
		for _, l := range g.allLanes() {
			l.advance() // an error leaves its call to fail
		}
		return struct{}{}, nil
	}, nil)
	if err != nil {
		g.abandon()
	}
}

// end aborts, or destroys, communicators, each on a thread of its own, which
// is given up on after a bounded time.
func (g *Group) end(how func(*communicator) error, comms ...*communicator) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), abortTime, fmt.Errorf("a communicator did not end within %v", abortTime))
	defer cancel()
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for i, c := range comms {
		wg.Go(func() {
			_, errs[i] = detach(ctx, func() (struct{}, error) { return struct{}{}, how(c) }, nil)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		g.abandon()
	}
	err := errors.Join(errs...)
	if errors.Is(err, errInside) {
		g.abandon()
	}
	if err != nil {
		g.cfg.Log.Warn("nccl: ending a communicator", "rank", g.cfg.Control.Rank(), "error", err)
	}
	return err
}

// abandon notes that a thread was left in C.
func (g *Group) abandon() {
	g.stuck.Store(true)
	g.memory.stuck.Store(true)
}

// lingering is a context that outlasts the group by the time that an abort may
// take.
func (g *Group) lingering() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(g.ctx, func() {
		select {
		case <-time.After(abortTime):
			cancel(context.Cause(g.ctx))
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Abort breaks the group with cause, or [backend.ErrAborted] if that is nil. When it
// returns the peers know why the group broke, be it for another cause.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = backend.ErrAborted
	}
	g.fail(cause)
}

// Split makes a group of some of this group's ranks. When this group breaks nobody is
// waited for any more.
func (g *Group) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	if cfg.Size != len(members) || members[cfg.Rank] != g.cfg.Rank {
		panic(fmt.Errorf("nccl: rank %d of %d cannot be rank %d of the %d members %v", g.cfg.Rank, g.cfg.Size, cfg.Rank, cfg.Size, members))
	}
	ctx, release := backend.Bound(ctx, g.ctx)
	defer release()
	sub, err := join(ctx, cfg, g.opts, false)
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d joining group %s: %w", cfg.Control.Rank(), cfg.Control.Name, err)
	}
	return sub, nil
}

// Close waits, while ctx lasts, for pending calls and for the other ranks to
// close, or to let this one go, and ends the group. If ctx ends first, the group
// breaks and the error says what was waited for.
func (g *Group) Close(ctx context.Context) error {
	if !g.state.Close() {
		return nil
	}
	var alone bool
	err := g.state.Drain(ctx)
	if err == nil {
		alone, err = g.leave(ctx)
	}
	if err != nil {
		told := errors.As(err, new(*coordinator.Failure)) // which no call of this rank's is left to end with
		g.fail(err)
		if told {
			err = nil
		}
	}
	g.mu.Lock()
	cause := g.state.Finalize()
	g.mu.Unlock()
	g.state.Stop(backend.ErrClosed)
	g.wg.Wait()
	switch {
	case cause != nil:
	case alone:
		g.end((*communicator).abort, g.comms...) // what remains is the process's to lose
	default:
		if err = g.end((*communicator).destroy, g.comms...); err == nil {
			g.shot.free()
		}
	}
	g.memory.collect()
	g.release()
	return err
}

// release gives back what the group has. Nothing of it runs any more, but for
// threads that stay in C and kernels that were given up: what they may use stays.
func (g *Group) release() {
	if g.stuck.Load() {
		return
	}
	for _, l := range g.lanes {
		if err := l.stream.Close(); err != nil {
			g.cfg.Log.Debug("nccl: closing a stream", "rank", g.cfg.Control.Rank(), "error", err)
		}
	}
	if g.word.Len() > 0 && g.memory.settled() {
		g.dev.Free(g.word)
	}
}
