package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/store"
)

// Standalone is the rendezvous of a single node. It waits for no other node. Each round gets
// its own store in this process. The zero value listens on a free port of the loopback
// interface.
type Standalone struct {
	// Addr is the store's address, and the value of MASTER_ADDR. Empty means 127.0.0.1.
	Addr string
	// Port is the store's port. 0 means a free port for each round, so that jobs on the same
	// machine do not collide.
	Port int

	rounds      int
	store       *store.Server
	coordinator *coordinator.Server
}

// Join opens an empty store and returns a round of one node. If it cannot listen on the
// address, the error names the address.
func (s *Standalone) Join(ctx context.Context, node Node) (*Round, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, fmt.Errorf("closing the store of round %d: %w", s.rounds-1, err)
	}
	host := s.Addr
	if host == "" {
		host = "127.0.0.1"
	}
	member := store.Member{
		Job: store.Job{ID: node.JobID, World: node.Workers}, Rank: -1, Secret: node.Secret, Insecure: node.Insecure,
	}
	server, err := store.Listen(net.JoinHostPort(host, strconv.Itoa(s.Port)), &store.ServerOptions{Member: member})
	if err != nil {
		return nil, err // the error names the store
	}
	s.store = server
	s.coordinator, err = coordinator.Publish(ctx, store.Prefix(server.Local(), coordinator.LauncherPrefix), member, net.JoinHostPort(host, "0"),
		node.Workers, coordinator.ClientOptions{Host: "the launcher", HostRank: -1})
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddrPort(server.Addr())
	if err != nil {
		return nil, fmt.Errorf("the store's address: %w", err)
	}
	round := &Round{
		Number:     s.rounds,
		Nodes:      1,
		WorldSize:  node.Workers,
		MasterAddr: host,
		MasterPort: int(addr.Port()),
	}
	s.rounds++
	return round, nil
}

// Exited notifies the ranks that wait for the worker of rank that it has ended.
func (s *Standalone) Exited(rank int, how string) {
	if s.coordinator != nil {
		s.coordinator.Exited(rank, how)
	}
}

// Close closes the store and the coordinator of the last round. A second call has no effect.
func (s *Standalone) Close() error {
	var err error
	if s.coordinator != nil {
		err = s.coordinator.Close()
		s.coordinator = nil
	}
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
		s.store = nil
	}
	return err
}
