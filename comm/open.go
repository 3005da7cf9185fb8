package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/store"
)

// A Store is a key-value store that the processes of a job share. Its methods may be called concurrently. A program
// that brings its own store implements these three methods.
type Store interface {
	// Set sets key to value.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key exists and returns its value.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the decimal integer at key, 0 if there is none, and returns the sum.
	Add(ctx context.Context, key string, delta int64) (int64, error)
}

// openStore connects to the job's store, and returns the number n of the group that this rank joins. The n-th groups of
// all ranks form one group. The keys of the group contain n, so they differ from the keys of earlier groups and of an
// earlier process with this rank.
func (j *joiner) openStore(ctx context.Context, release *releases) (n int64, err error) {
	if j.kv = j.Store; j.kv == nil {
		if j.kv, err = j.dialStore(ctx, release); err != nil || j.isPending {
			return 1, err
		}
	}
	return j.kv.Add(ctx, groupsKey(j.world), 1)
}

// dialStore connects to the job's store. If the launcher does not host the store, rank 0 hosts
// it. dialStore appends to `release` the functions that close the store's connection and
// server.
func (j *joiner) dialStore(ctx context.Context, release *releases) (store.Store, error) {
	w, m, log := j.world, &j.member, j.Log
	if w.Size == 1 && !w.AgentStore {
		s := store.NewLocal()
		release.addClose(s.Close)
		return s, nil
	}
	hosts := w.Rank == 0 && !w.AgentStore
	switch {
	case hosts:
		addr := w.masterAddr()
		if !w.oneHost() && !namesLoopback(w.MasterAddr) {
			// Listen on all interfaces: on this host the name may resolve to the loopback
			// address, and on other hosts to an address of the network.
			addr = net.JoinHostPort("", strconv.Itoa(w.MasterPort))
		}
		server, err := store.Listen(addr, &store.ServerOptions{Logger: log, Member: *m})
		if err != nil {
			return nil, fmt.Errorf("hosting the store: %w", err)
		}
		release.addClose(server.Close)
	case !w.AgentStore:
		if err := checkExposure(ctx, w, m); err != nil {
			return nil, fmt.Errorf("rank 0 cannot host the store: %w", err)
		}
	}
	timeout := max(j.Timeout, time.Minute) // the store may be as busy as the ranks are
	client, err := store.Dial(ctx, w.masterAddr(), &store.ClientOptions{Member: m, Timeout: timeout, AnyStore: j.anyStore(), Waiting: func(why error) {
		logf(ctx, log, slog.LevelInfo, "[Rank %d] waiting for the job's store at %s: %v; giving up in %v", w.Rank, w.masterAddr(), why, time.Until(j.deadline).Round(time.Second))
	}})
	if err != nil {
		switch {
		case errors.As(err, new(*store.HandshakeError)): // the error says which program answered
		case w.AgentStore:
			err = fmt.Errorf("the launcher, which hosts the job's store, cannot be reached: %w", err)
		case !hosts:
			err = fmt.Errorf("rank 0, which hosts the job's store, has not started, has ended or cannot be reached: %w", err)
		}
		return nil, err
	}
	release.addClose(client.Close)
	if client.Rival() != nil {
		return nil, j.rejectRival(ctx, client)
	}
	warnOpenStore(w, client, m, log)
	return client, nil
}

// groupsKey returns the key of the store at which a rank counts the groups that it has begun to
// join.
func groupsKey(w World) string { return fmt.Sprintf("goddp/%d/groups/%d", w.Generation, w.Rank) }

// namesLoopback reports whether addr is "localhost" or a loopback address. If the address of
// the master is one of them, the whole job is on one machine.
func namesLoopback(addr string) bool {
	ip := net.ParseIP(addr)
	return addr == "localhost" || ip != nil && ip.IsLoopback()
}
