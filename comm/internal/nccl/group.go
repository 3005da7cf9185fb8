//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/callstate"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/coordinator"
)

// Group is one rank's handle of a group of GPUs. It implements [backend.Backend].
type Group struct {
	cfg    backend.Config
	opts   Options
	dev    cudaDevice
	lib    *library
	memory *memory
	main   *commStream     // runs everything except Send and Recv outside a Group
	small  *smallAllReduce // enqueues on main; nil if there are too many ranks, or not all on one host

	state         *callstate.State // counts pending calls and knows why the group broke
	ctx           context.Context  // state.Context()
	wake          chan struct{}    // capacity 1: a call was started while watch slept
	isWatchAsleep atomic.Bool      // watch sleeps until a call is started
	wg            sync.WaitGroup   // goroutines that end with the group, or a bounded time later
	isStuck       atomic.Bool      // a thread was abandoned in C: resources that it may use must not be freed
	wasReported   atomic.Bool      // this rank has reported a failure

	// epoch is the start of the group's clock. Times are durations since then, because reading only the monotonic
	// clock is twice as fast. Dates do not reflect later changes of the wall clock.
	epoch time.Time

	// mu is held while the group breaks and while it is finalized, so the group does not break
	// while another goroutine holds mu.
	mu         sync.Mutex
	streams    []*commStream
	sends      map[int]*commStream // by peer; each stream is created at its first use
	recvs      map[int]*commStream
	comms      []*communicator
	barrierMem device.Buffer          // memory for Barrier's all-reduce
	captures   map[*capture.Step]bool // the captured steps that contain calls of the group

	left       map[int]progress // ranks that left before the others, with their progress
	departures []departure      // ranks that wait for this rank to release them
}

var _ backend.Backend = (*Group)(nil)

func newGroup(ctx context.Context, cfg backend.Config, o Options, dev cudaDevice) *Group {
	g := &Group{
		cfg: cfg, opts: o, dev: dev, memory: memoryOf(dev), state: callstate.New(ctx, cfg.Control), wake: make(chan struct{}, 1),
		epoch: time.Now(), sends: map[int]*commStream{}, recvs: map[int]*commStream{}, left: map[int]progress{},
		captures: map[*capture.Step]bool{},
	}
	g.ctx = g.state.Context()
	return g
}

// jobRank converts a rank of the group to its rank in the job.
func (g *Group) jobRank(rank int) int { return g.cfg.Control.Members[rank] }

// now returns the time since epoch. It is never 0.
func (g *Group) now() time.Duration { return max(1, time.Since(g.epoch)) }

// Name returns "nccl".
func (g *Group) Name() string { return "nccl" }

// newCommunicator creates a communicator that ends with the group.
func (g *Group) newCommunicator(ctx context.Context, id []byte, rank, size int, small *smallAllReduce) (*communicator, error) {
	c, err := g.lib.connect(ctx, id, rank, size, small)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.comms = append(g.comms, c)
	if g.state.Cause() != nil { // the group broke in the meantime: awaitFailure did not see c
		g.wg.Go(func() { g.abort(c) })
	}
	return c, nil
}

// Start enqueues a call.
func (g *Group) Start(c *backend.Call) (backend.Task, error) {
	t := &task{group: g, call: c}
	cs, err := g.admitted(t)
	if err != nil {
		return nil, err
	}
	cs.submit(t)
	g.wakeWatch()
	return t, nil
}

// wakeWatch wakes watch if it sleeps.
func (g *Group) wakeWatch() {
	if g.isWatchAsleep.Load() && g.isWatchAsleep.CompareAndSwap(true, false) { // the flag avoids a channel send, which is expensive compared with the NCCL call
		g.wake <- struct{}{}
	}
}

// admitted calls admit. If the group is broken, admitted returns only when the other ranks know the cause.
func (g *Group) admitted(t *task) (*commStream, error) {
	cs, err := g.admit(t)
	return cs, g.awaitBroken(err)
}

// awaitBroken returns err. If the group is broken, it first waits until the other ranks know the cause, because
// the program may exit on the error.
func (g *Group) awaitBroken(err error) error {
	if err != nil && g.state.Cause() != nil {
		<-g.ctx.Done() // ends soon, because the group is broken
	}
	return err
}

// admit counts a call as pending and returns the stream for it. It returns an error if the group is
// broken or closed.
func (g *Group) admit(t *task) (*commStream, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.state.Admit(1); err != nil {
		return nil, err
	}
	cs, err := g.streamFor(t.call)
	if err != nil {
		g.state.End()
		return nil, err
	}
	cs.pending = append(cs.pending, t)
	cs.started++
	t.stream, t.number = cs, cs.started
	g.memory.busy.Add(1)
	return cs, nil
}

// streamFor returns the stream for a call. Send and Recv have one per peer and direction, created at first use. mu
// must be held.
func (g *Group) streamFor(c *backend.Call) (*commStream, error) {
	var streams map[int]*commStream
	var p *pair
	rank := 0
	switch c.Kind {
	case backend.Send:
		streams, p = g.sends, &pair{from: g.cfg.Rank, to: c.Root}
	case backend.Recv:
		streams, p, rank = g.recvs, &pair{from: c.Root, to: g.cfg.Rank}, 1
	default:
		return g.main, nil
	}
	if cs := streams[c.Root]; cs != nil {
		return cs, nil
	}
	cs, err := g.newCommStream()
	if err != nil {
		return nil, err
	}
	cs.pair, cs.builder = p, opBuilder{rank: rank, size: 2, pair: true}
	streams[c.Root] = cs
	return cs, nil
}

// finish ends a pending call. mu must be held.
func (g *Group) finish(t *task, err error) {
	t.state, t.err, t.endedAt = backend.Done, err, g.now()
	if err != nil {
		t.state = backend.Failed
	}
	if o := t.call.Observer; o != nil {
		o.Ended(g.epoch.Add(t.endedAt), err)
	}
	t.stream.ended++
	if len(g.departures) > 0 {
		g.releaseLeavers()
	}
	g.memory.busy.Add(-1)
	g.state.End()
}

// fail reports a failure, and returns when the group is broken. Calls that finished before count as done.
func (g *Group) fail(cause error) {
	if g.cfg.Control.Failure() == nil && !g.wasReported.Swap(true) {
		g.pollAll()
		var asked []int
		var lost *failure.PeerLostError
		if errors.As(cause, &lost) {
			asked = []int{lost.Peer}
		}
		g.state.Report(cause, asked...)
	}
	<-g.ctx.Done()
}

// awaitFailure breaks the group when it has failed. It waits until the other ranks know the cause
// before it ends calls, because the program may exit on the error, and before it aborts
// communicators.
func (g *Group) awaitFailure() {
	control := g.cfg.Control
	select {
	case <-control.Failed():
	case <-g.ctx.Done(): // the group was closed
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
	g.wg.Go(func() { g.revoke(cause) }) // beside the abort: freeing a graph waits for kernels that only the abort ends
	g.memory.busy.Add(1)
	defer g.memory.busy.Add(-1)
	g.mu.Lock()
	for _, cs := range g.streams {
		for _, t := range cs.pending {
			if t.state < backend.Done {
				g.finish(t, g.state.ErrorOf(t.call))
			}
		}
		cs.pending = nil
	}
	comms := g.comms
	g.mu.Unlock()
	g.state.Stop(cause)
	g.abort(comms...)
}

// pollAll updates the states of all calls, unless the driver hangs.
func (g *Group) pollAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.ctx), pollTimeout)
	defer cancel()
	_, err := detach(ctx, func() (struct{}, error) {
		for _, cs := range g.commStreams() {
			cs.advance() // an error can be ignored: it is returned again when its call fails
		}
		return struct{}{}, nil
	}, nil)
	if err != nil {
		g.markStuck()
	}
}

// abort aborts communicators, and returns when their kernels have ended. ncclCommAbort completes up to half a
// second later, in the background: it joins NCCL's threads, which check for an abort twice a second.
func (g *Group) abort(comms ...*communicator) {
	aborting := g.memory.background(g.ctx, func() { g.end((*communicator).abort, comms...) })
	for _, c := range comms {
		select {
		case <-c.halted:
		case <-aborting.Done():
		}
	}
	for _, cs := range g.commStreams() {
		g.mu.Lock()
		last := cs.last
		g.mu.Unlock()
		if last != nil && last.Sync(aborting) != nil { // a kernel of a small all-reduce may still run
			g.memory.keepUntil(last)
		}
	}
}

// end aborts or destroys communicators, each on a separate thread. It returns after at most abortTimeout and
// abandons threads that are not done.
func (g *Group) end(how func(*communicator) error, comms ...*communicator) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(g.ctx), abortTimeout, fmt.Errorf("a communicator was not destroyed within %v", abortTimeout))
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
		g.markStuck()
	}
	err := errors.Join(errs...)
	if errors.Is(err, errCallStuck) {
		g.markStuck()
	}
	if err != nil {
		g.cfg.Log.Warn("nccl: destroying a communicator", "rank", g.cfg.Control.Rank(), "error", err)
	}
	return err
}

// markStuck records that a thread was abandoned in C.
func (g *Group) markStuck() {
	g.isStuck.Store(true)
	g.memory.isStuck.Store(true)
}

// contextWithGrace returns a context that ends abortTimeout after the group's. The caller must call
// the returned function.
func (g *Group) contextWithGrace() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(g.ctx))
	stop := context.AfterFunc(g.ctx, func() {
		select {
		case <-time.After(abortTimeout):
			cancel(context.Cause(g.ctx))
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Abort breaks the group with cause, or with [failure.ErrAborted] if cause is nil. When it returns,
// the peers know why the group broke, which may be an earlier cause.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = failure.ErrAborted
	}
	g.fail(cause)
}

// Split creates a group of some of this group's ranks. If this group breaks in the meantime, Split fails with the
// cause.
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

// Close waits, while ctx lasts, for pending calls, and then for the other ranks to close their
// groups or to release this one. If ctx ends first, the group breaks and the error says what Close
// waited for.
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
		byCoordinator := errors.As(err, new(*coordinator.Failure)) // no call of this rank is pending, so Close returns no error
		g.fail(err)
		if byCoordinator {
			err = nil
		}
	}
	g.mu.Lock()
	cause := g.state.Finalize()
	g.mu.Unlock()
	g.state.Stop(failure.ErrClosed)
	g.wg.Wait()
	g.revoke(failure.ErrClosed)
	switch {
	case cause != nil:
	case alone:
		g.abort(g.comms...) // errors are ignored: the memory is freed with the process
	default:
		if err = g.end((*communicator).destroy, g.comms...); err == nil {
			g.small.free()
		}
	}
	g.memory.collect(g.ctx)
	g.release()
	return err
}

// Unmap implements [backend.Sharer].
func (g *Group) Unmap() {
	if !g.isStuck.Load() {
		g.end((*communicator).unmap, g.main.comm)
	}
}

// Free implements [backend.Sharer].
func (g *Group) Free() {
	if !g.isStuck.Load() {
		g.small.free()
		g.memory.collect(g.ctx)
	}
}

// release frees the group's resources. The caller must have ended everything that uses them. If a thread is stuck
// in C, or kernels may still run, the resources that they may use are leaked.
func (g *Group) release() {
	if g.isStuck.Load() {
		return
	}
	for _, cs := range g.streams {
		if err := cs.stream.Close(); err != nil {
			g.cfg.Log.Debug("nccl: closing a stream", "rank", g.cfg.Control.Rank(), "error", err)
		}
	}
	if g.barrierMem.Len() > 0 && g.memory.isUnused() {
		g.dev.Free(g.barrierMem)
	}
}
