package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/wire"
)

// services are the store and the coordinator of one round, in the process that hosts the rendezvous. A nil
// *services belongs to no round.
type services struct {
	store       *store.Server
	coordinator *coordinator.Server
	host        string         // the host part of the store's address, as it was given
	addr        netip.AddrPort // the store's address

	// In a round that survives lost workers:
	finishing    bool // a member has succeeded
	goesOn       bool // the others go on without the worker that was lost last
	replacements replacements
	roster       *roster
	timers       []*awake.Timer // of the orders to start replacements, of the deaths of lost agents' workers, and of LeaveAnswers
}

// openServices opens a fresh store and coordinator for a round of `world` workers. The coordinator is elastic if e
// is not nil. The error names the address that could not be listened on.
func openServices(ctx context.Context, o HostOptions, world int, e *coordinator.Elastic) (*services, error) {
	host := cmp.Or(o.Addr, wire.Loopback())
	member := store.Member{Job: handshake.Job{ID: o.Credentials.JobID, World: world}, Rank: -1, Secret: o.Credentials.Secret, Insecure: o.Credentials.Insecure}
	server, err := store.Listen(net.JoinHostPort(host, strconv.Itoa(o.Port)), &store.ServerOptions{Member: member, Logger: o.Log})
	if err != nil {
		return nil, err // the error says that the store's address is meant
	}
	s := &services{store: server, host: host, goesOn: true, replacements: newReplacements(world)}
	options := coordinator.ClientOptions{Host: "the launcher", HostRank: -1}
	if e != nil {
		options.Elastic, options.Silence = e, o.Limits.Survival.Silence
		options.Interval = min(coordinator.DefaultInterval, options.Silence/4)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // the store is in this process
	defer cancel()
	s.coordinator, err = coordinator.Publish(ctx, store.Prefix(server.Local(), coordinator.LauncherPrefix), member, net.JoinHostPort(host, "0"),
		world, options)
	if err == nil {
		s.addr, err = netip.ParseAddrPort(server.Addr())
	}
	if err == nil && world > 1 { // a single worker may need no store
		err = checkReach(ctx, server.Addr(), member)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the store and the coordinator of a round: %w", err), s.close())
	}
	return s, nil
}

// checkReach returns an error if this host's workers cannot reach the store at addr.
func checkReach(ctx context.Context, addr string, m store.Member) error {
	c, err := store.Dial(ctx, addr, &store.ClientOptions{Member: &m})
	if err != nil {
		return err
	}
	return c.Close()
}

// exited notifies the ranks that wait for a rank that the rank's process has ended.
func (s *services) exited(rank int, how string) {
	if s != nil {
		s.coordinator.Exited(rank, how)
	}
}

// close closes the coordinator and the store.
func (s *services) close() error {
	if s == nil {
		return nil
	}
	for _, t := range s.timers {
		t.Stop()
	}
	var err error
	if s.coordinator != nil {
		err = s.coordinator.Close()
	}
	return errors.Join(err, s.store.Close())
}
