package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
)

// A Store is a key-value store that the processes of a job share. Several goroutines may call its methods
// at the same time. Of a store of their own, programs need these three methods.
type Store interface {
	// Set sets key to value.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key exists and returns its value.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the decimal integer at key, 0 if there is none, and returns the sum.
	Add(ctx context.Context, key string, delta int64) (int64, error)
}

// connect makes the backend for the device of the group: NCCL for a GPU, else the host backend.
// If `checks` is set, connect wraps the backend in a callChecker.
func connect(ctx context.Context, w World, cfg backend.Config, m store.Member, checks bool) (backend.Backend, error) {
	var be backend.Backend
	var err error
	if isGPU(cfg.Device) {
		var o nccl.Options
		if o.NoSmallAllReduce, err = jobenv.Bool(os.Getenv, false, jobenv.NoSmallAllReduceVar); err != nil {
			return nil, backend.GiveUp(cfg.Control, err)
		}
		be, err = nccl.New(ctx, cfg, &o)
	} else {
		var o *host.Options
		if o, err = hostOptions(w, m); err != nil {
			return nil, backend.GiveUp(cfg.Control, err)
		}
		be, err = host.New(ctx, cfg, o)
	}
	if err != nil || !checks {
		return be, err
	}
	return newCallChecker(ctx, be, cfg), nil
}

// isGPU reports whether dev is a GPU that NCCL can use.
func isGPU(dev device.Device) bool {
	_, ok := dev.(interface{ Context() uintptr })
	return ok
}

// hostOptions returns the options of the host backend. In a job of several hosts, this rank
// listens on the address at which golaunch's agent says that other nodes reach this one, or under
// other launchers on the local address from which it reaches the master.
func hostOptions(w World, m store.Member) (*host.Options, error) {
	unprotected, err := handshake.ReadUnprotected(os.Getenv)
	if err != nil {
		return nil, err
	}
	o := &host.Options{HostID: os.Getenv(jobenv.HostIDVar), Member: m, Unprotected: unprotected || m.Insecure}
	if w.oneHost() {
		return o, nil
	}
	if addr := os.Getenv(jobenv.NodeAddrVar); addr != "" && w.AgentStore && !w.anyStore() {
		o.Listen = net.JoinHostPort(addr, "0")
		return o, nil
	}
	// Connecting a datagram socket sends no packet. It only looks up the route.
	c, err := net.Dial("udp", w.masterAddr())
	if err != nil {
		return nil, fmt.Errorf("finding the way to the master at %s: %w", w.masterAddr(), err)
	}
	defer c.Close()
	ip := c.LocalAddr().(*net.UDPAddr).IP
	if ip.IsLoopback() && !namesLoopback(w.MasterAddr) {
		return nil, fmt.Errorf("the master %s is %v on this host, where ranks of other hosts cannot reach it: name it by an address of the network", w.MasterAddr, ip)
	}
	o.Listen = net.JoinHostPort(ip.String(), "0")
	return o, nil
}

// namesLoopback reports whether addr is "localhost" or a loopback address. If the address of
// the master is one of them, the whole job is on one machine.
func namesLoopback(addr string) bool {
	ip := net.ParseIP(addr)
	return addr == "localhost" || ip != nil && ip.IsLoopback()
}

// openStore connects to the job's store. If the launcher does not host the store, rank 0 hosts
// it. openStore appends to `release` the functions that close the store's connection and
// server.
func openStore(ctx context.Context, w World, o *Options, release *releases) (store.Store, error) {
	m, log := &o.member, o.Log
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
	timeout := max(o.Timeout, time.Minute) // the store may be as busy as the ranks are
	client, err := store.Dial(ctx, w.masterAddr(), &store.ClientOptions{Member: m, Timeout: timeout, AnyStore: w.anyStore(), Waiting: func(why error) {
		logf(ctx, log, slog.LevelInfo, "[Rank %d] waiting for the job's store at %s: %v; giving up in %v", w.Rank, w.masterAddr(), why, time.Until(o.deadline).Round(time.Second))
	}})
	if err != nil {
		switch {
		case errors.As(err, new(*store.HandshakeError)): // the error says which program answered
		case w.AgentStore:
			err = fmt.Errorf("the launcher, which hosts the job's store, cannot be reached: %w", err)
		case !hosts:
			err = fmt.Errorf("rank 0, which hosts the job's store, has not come, has ended or cannot be reached: %w", err)
		}
		return nil, err
	}
	release.addClose(client.Close)
	if client.Rival() != nil {
		return nil, rejectRival(ctx, client, w, m)
	}
	warnOpenStore(w, client, m, log)
	return client, nil
}
