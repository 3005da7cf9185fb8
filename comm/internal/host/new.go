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

// Options configure the transport. The zero value is for ranks that are processes on one host.
type Options struct {
	// InProcess connects ranks that are goroutines of this process. nil means that ranks are
	// processes.
	InProcess *InProcess
	// HostID identifies this rank's host. Ranks with equal ids try to share memory. "" means the
	// kernel's boot id and network namespace.
	HostID string
	// Listen is the address, host:port, at which ranks on other hosts reach this one. Port 0 means
	// any free port. An empty host means all interfaces. "" means a free port on the loopback
	// interface. The listener is open only during the bootstrap.
	Listen string
	// Member identifies this process in its job. The ranks compare its job id and secret on every
	// connection; its Rank is not used. The zero value has neither job id nor secret.
	Member store.Member
	// Unprotected disables encryption and authentication of the data between ranks on different
	// hosts, although the job has a secret. It must be equal on all ranks.
	Unprotected bool

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil, except in tests: a net.Dialer's
}

// New creates this rank's handle of a group. It returns when every rank has joined and all ranks
// are connected. The ranks find each other through cfg.Control, and accept only connections that
// prove that they have the key of cfg.Control. If some ranks do not join in time, the error is a
// [*failure.AbsentError].
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
		return nil, fmt.Errorf("host: rank %d of %d connecting to its peers: %w", cfg.Rank, cfg.Size, err)
	}
	g.open()
	return g, nil
}
