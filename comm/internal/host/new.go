package host

import (
	"context"
	"fmt"
	"net"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/store"
)

// Options says how the ranks reach each other. The zero value is for ranks that are processes of
// one host.
type Options struct {
	// InProcess joins ranks that are goroutines of this process. nil: the ranks are processes.
	InProcess *InProcess
	// HostID names this rank's host. Ranks with equal names try to share memory. "" stands for the
	// kernel's boot id and network namespace.
	HostID string
	// Listen is the address, host:port, at which ranks on other hosts reach this one. Port 0 is any
	// free port, an empty host every interface, and "" stands for a free port of the loopback interface. The listener is open
	// only while the group is being made.
	Listen string
	// Member identifies this process in its job. The ranks compare its job id and secret on every
	// connection; its Rank is not used. The zero value belongs to no job and has no secret.
	Member store.Member
	// Unprotected leaves connections with ranks on other hosts neither encrypted nor authenticated
	// after their start, although the job has a secret. It must be equal on all ranks.
	Unprotected bool

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil, except in tests: a net.Dialer's
}

// New makes this rank's end of a group. It returns when every rank has joined and all ranks are
// connected with each other. The ranks find each other through cfg.Control, and accept only
// connections that prove to have the key of cfg.Control. If some ranks do not join in time, the
// error is a [*failure.AbsentError].
func New(ctx context.Context, cfg backend.Config, opts *Options) (*Group, error) {
	g := newGroup(ctx, cfg, opts)
	ctx, cancel := awake.WithTimeoutCause(ctx, g.cfg.Timeout, fmt.Errorf("%w after %v", failure.ErrTimeout, g.cfg.Timeout))
	defer cancel()
	ctx, release := g.cfg.Control.Bound(ctx)
	defer release()
	join := joinProcesses
	switch {
	case g.opts.InProcess != nil:
		join = g.opts.InProcess.join
	case cfg.Size == 1:
		join = NewInProcess().join
	}
	if err := join(ctx, g); err != nil {
		err = backend.GiveUp(g.cfg.Control, err)
		g.state.Stop(err)
		return nil, fmt.Errorf("host: rank %d of %d finding its peers: %w", cfg.Rank, cfg.Size, err)
	}
	g.open()
	return g, nil
}
