package host

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/store"
)

// Options says how ranks reach each other. The zero value is for ranks that
// are processes of one host.
type Options struct {
	// InProcess, if not nil, joins ranks that are goroutines of this process.
	InProcess *InProcess
	// HostID names this rank's host: ranks with equal names try to share
	// memory. "" is the kernel's boot id and network namespace.
	HostID string
	// Listen is the address, host:port, at which ranks on other hosts reach
	// this one; a port of 0 is any free one, a host of "" every interface.
	// "" is 127.0.0.1:0. It is open while the group is being made.
	Listen string
	// Member is this process in its job, whose secret and whose id the ranks compare
	// on every connection. Its Rank is not used. The zero value is of no job, without
	// a secret.
	Member store.Member
}

// New makes this rank's end of a group: it returns when every rank has come
// and reaches every other one. The ranks find each other through cfg.Control,
// whose key no connection is accepted without. The
// error is a [*backend.AbsentError] where some did not come in time.
func New(ctx context.Context, cfg backend.Config, opts *Options) (*Group, error) {
	g := newGroup(cfg, opts)
	ctx, cancel := awake.WithTimeoutCause(ctx, g.cfg.Timeout, fmt.Errorf("%w after %v", backend.ErrTimeout, g.cfg.Timeout))
	defer cancel()
	ctx, release := g.cfg.Control.Bound(ctx)
	defer release()
	join := joinLinks
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
