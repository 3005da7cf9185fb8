package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// Options say how a node takes part in a job.
type Options struct {
	Discovery Discovery
	Identity  *Identity // nil: the job has one node
	Node      NodeInfo
	// MasterPort returns a free port of this node, for the next round.
	MasterPort func() int
	Host       HostOptions // used if this agent hosts the rendezvous; Limits and the times are used by every agent
}

// Agent is a node's part in the rendezvous of a job, over all rounds and whichever agent hosts it. Its
// methods may be called by any goroutine.
type Agent struct {
	opts   Options
	orders chan Order
	ended  chan struct{} // capacity 1: receives when the workers have ended
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	session *Session
	epoch   int  // the number of the latest round
	running bool // whether workers run: between an order Begin and the call of Ended
	left    bool // Leave was called, with now
}

// Open has a node take part in a job. The caller must take the orders until one has End or Err, and then
// call Close.
func Open(ctx context.Context, o Options) *Agent {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &Agent{opts: o, orders: make(chan Order), ended: make(chan struct{}, 1), cancel: cancel}
	a.wg.Go(func() { a.run(ctx) })
	return a
}

// Orders returns the channel of the host's orders. Its last order has End or Err.
func (a *Agent) Orders() <-chan Order { return a.orders }

// Failed reports a failure of a worker in the current round.
func (a *Agent) Failed(f failure.Failure) { a.current().Failed(f) }

// Ended reports that all workers of a round have ended: see Session.Ended.
func (a *Agent) Ended(round int, agreed bool, failures []failure.Failure) {
	a.mu.Lock()
	a.running = false
	a.mu.Unlock()
	select {
	case a.ended <- struct{}{}:
	default:
	}
	a.current().Ended(round, agreed, failures, a.opts.MasterPort())
}

// Leave announces that this agent leaves the job: see Session.Leave.
func (a *Agent) Leave(why string, now bool) {
	a.mu.Lock()
	if now {
		a.running, a.left = false, true
	}
	s := a.session
	a.mu.Unlock()
	if s != nil {
		s.Leave(why, now)
	}
}

// AskToLeave announces that this agent leaves a round that survives lost workers: see Session.AskToLeave.
func (a *Agent) AskToLeave(why string) { a.current().AskToLeave(why) }

// Exited reports that the process of a worker has ended: see Session.Exited.
func (a *Agent) Exited(e Exit) { a.current().Exited(e) }

// Watch returns a stream to the function Watch of the host of the current round. It returns nil if the host is in this process.
func (a *Agent) Watch() (net.Conn, error) {
	s := a.current()
	if s.local {
		return nil, nil
	}
	return s.open(watchService)
}

func (a *Agent) current() *Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session
}

// Close ends this node's part. If the agent has not left, and the job has not ended, the node is lost.
func (a *Agent) Close() error {
	a.cancel(net.ErrClosed)
	a.wg.Wait()
	return a.opts.Discovery.Close()
}

// run takes part until the job ends, in the rendezvous of one host after another.
func (a *Agent) run(ctx context.Context) {
	dead := ""
	for {
		addr, err := a.attend(ctx, dead)
		if err == nil {
			return
		}
		a.mu.Lock()
		running, left, epoch := a.running, a.left, a.epoch
		a.mu.Unlock()
		var lost *HostLostError
		if !errors.As(err, &lost) || left || ctx.Err() != nil {
			a.put(ctx, Order{Err: err})
			return
		}
		if running {
			a.put(ctx, Order{Stop: &StopOrder{Epoch: epoch, Reason: err.Error(), Kills: a.opts.Host.Limits.Survival.isOn()}})
			select {
			case <-a.ended:
			case <-ctx.Done():
				return
			}
		}
		dead = addr
	}
}

// attend finds the host, or hosts the rendezvous itself, and passes on the host's orders. When the job has
// ended, the error is nil. Otherwise attend returns the host's address and why the session with it has ended.
func (a *Agent) attend(ctx context.Context, dead string) (addr string, err error) {
	finding, cancel := awake.WithTimeoutCause(ctx, cmp.Or(a.opts.Host.JoinTimeout, DefaultJoinTimeout), errNoHost)
	defer cancel()
	var found *Found
	var r *Remote
	var why *unreachableError // the error of the last attempt that was not cut short
	for r == nil {
		host := ""
		if found, err = a.opts.Discovery.Find(finding, dead); err == nil {
			if found.Role != nil {
				return a.host(ctx, found.Role)
			}
			host = found.Addr
			r, err = a.dial(finding, host)
		}
		var latest *unreachableError
		switch {
		case err == nil:
		case !errors.As(err, &latest):
			return host, err
		case finding.Err() != nil:
			if why == nil {
				why = latest
			}
			return host, fmt.Errorf("%s: %w: %w", why.addr, context.Cause(finding), why.err)
		default:
			if why == nil {
				a.put(ctx, Order{Hold: err.Error()})
			}
			why = latest
		}
	}
	cancel()
	defer r.Close()
	f, err := newForwarder(r.Open)
	if err != nil {
		return found.Addr, fmt.Errorf("forwarding to the host of the rendezvous: %w", err)
	}
	defer f.close()
	return found.Addr, a.follow(ctx, r.Session, func(round *Round) {
		round.StoreAddr, round.CoordinatorAddr = f.store.Addr().String(), f.coordinator.Addr().String()
	})
}

var errNoHost = errors.New("no host of the rendezvous was found in time")

// patience is the time after which an agent that has not reached the host logs this, and finds out again which
// agent the host is, because the first one may have died.
const patience = 3 * time.Second

// dial dials the host until it answers, at most for the time patience, or until ctx ends. If the host has not
// answered, dial returns an *unreachableError.
func (a *Agent) dial(ctx context.Context, addr string) (*Remote, error) {
	o := DialOptions{Addr: addr, Identity: a.opts.Identity, Node: a.opts.Node, Limits: a.opts.Host.Limits,
		MasterPort: a.opts.MasterPort(), Heartbeat: a.opts.Host.Heartbeat}
	var mute *muteError
	for start := time.Now(); ; {
		once, cancel := awake.WithTimeout(ctx, handshakeTime)
		r, err := Dial(once, o)
		cancel()
		if err == nil || errors.As(err, new(*HandshakeError)) {
			return r, err
		}
		if _, isFixed := a.opts.Discovery.(Endpoint); isFixed && errors.As(err, &mute) {
			err = fmt.Errorf("the port is in use by a program that is not golaunch, or is stopped (%w): end it, or choose another port with --rdzv-endpoint HOST:PORT", mute)
		}
		if time.Since(start) > patience || !pause(ctx) {
			return nil, &unreachableError{addr, err}
		}
	}
}

// pause waits for dialInterval. It returns false if ctx ends before.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(dialInterval):
		return true
	}
}

// unreachableError says that the host at an address has not answered yet.
type unreachableError struct {
	addr string
	err  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("the host of the rendezvous, %s, cannot be reached yet: %v", e.addr, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// leaveTime bounds how long a host that has ended the job or resigned waits for the other agents to learn this
// and leave.
const leaveTime = 5 * time.Second

// host hosts the rendezvous, and takes part in it.
func (a *Agent) host(ctx context.Context, role *Role) (addr string, err error) {
	o := a.opts.Host
	o.State, o.Save = role.State, role.Save
	h := NewHost(ctx, o)
	addr = "this node"
	s := h.Join(a.opts.Node, a.opts.MasterPort()) // the first one, so that the host is node 0 of the first round
	if role.Listener != nil {
		addr = role.Listener.Addr().String()
		h.Serve(role.Listener, a.opts.Identity)
	}
	stop := make(chan struct{})
	a.wg.Go(func() {
		select {
		case <-role.Over: // nil if the role never ends
			h.depose()
			h.Close()
		case <-stop:
		}
	})
	defer close(stop)
	err = a.follow(ctx, s, func(*Round) {})
	if h.isOver() {
		h.awaitAgents(leaveTime)
	}
	closed := h.Close()
	var resigned error
	if role.Resign != nil {
		resigned = role.Resign(context.WithoutCancel(ctx), h.jobEnded())
	}
	if role.Over != nil && errors.As(err, new(*HostLostError)) {
		why := election.ErrOver
		if errors.Is(resigned, election.ErrEnded) {
			why = resigned
		}
		return addr, &HostLostError{"this node", why}
	}
	return addr, errors.Join(err, closed, resigned)
}

// follow passes on the orders of a session until it ends, and calls adapt with each round. It returns nil
// when the job has ended.
func (a *Agent) follow(ctx context.Context, s *Session, adapt func(*Round)) error {
	defer s.Close()
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	impatient := time.NewTimer(patience)
	defer impatient.Stop()
	for {
		var o Order
		select {
		case o = <-s.Orders():
			impatient.Stop()
		case <-impatient.C:
			limits := a.opts.Host.Limits
			o.Hold = fmt.Sprintf("this node has joined, and at least %s must", count(limits.MinNodes, "node"))
			if limits.MaxNodes > limits.MinNodes {
				o.Hold += fmt.Sprintf(", and up to %d may", limits.MaxNodes)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if o.Err != nil {
			return o.Err
		}
		if o.Begin != nil {
			adapt(o.Begin)
			select { // drop an end of the previous round's workers
			case <-a.ended:
			default:
			}
			a.mu.Lock()
			a.epoch, a.running = o.Begin.Number, true
			a.mu.Unlock()
		}
		if !a.put(ctx, o) {
			return context.Cause(ctx)
		}
		if o.End != nil {
			return nil
		}
	}
}

func (a *Agent) put(ctx context.Context, o Order) bool {
	select {
	case a.orders <- o:
		return true
	case <-ctx.Done():
		return false
	}
}
