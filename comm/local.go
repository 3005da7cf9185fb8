package comm

import (
	"context"
	"errors"
	"sync"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/store"
)

// Local makes the n process groups of a job whose ranks are goroutines of this process. The
// goroutine that is rank r uses group r. Each group has a device of its own. The ranks exchange
// Go memory through channels, so the race detector sees accesses of all ranks. Within a
// testing/synctest bubble, the bubble's clock drives the deadlines.
//
// Local ignores World, Store and Device of opts, and treats AsyncErrorHandling as CleanUpOnly:
// no rank ends the process or writes its flight record to a file. The caller must close every
// group.
func Local(n int, opts *Options) ([]*ProcessGroup, error) {
	o := opts.orDefaults()
	if err := o.readEnv(); err != nil {
		return nil, err
	}
	if o.ErrorMode == AsyncErrorHandling {
		o.ErrorMode = CleanUpOnly
	}
	o.dumps = nil
	hub, kv := host.NewInProcess(), store.NewLocal()
	server := coordinator.NewServer(n, coordinator.Options{Log: o.Log})
	groups, errs := make([]*ProcessGroup, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { groups[r], errs[r] = joinLocal(r, n, hub, kv, server, o) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, g := range groups {
			if g != nil {
				g.Close()
			}
		}
		server.Close()
		return nil, err
	}
	return groups, nil
}

// joinLocal makes the group of one rank of Local.
func joinLocal(rank, size int, hub *host.InProcess, kv store.Store, server *coordinator.Server, o Options) (*ProcessGroup, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.Timeout) // the ranks of one process join at once
	defer cancel()
	w := World{Rank: rank, Size: size, LocalRank: rank, LocalSize: size}
	dev, err := openCPU(w, o.Log)
	if err != nil {
		return nil, err
	}
	o.World = &w
	client, err := server.Local(rank, coordinator.ClientOptions{Size: size, Host: "this process", HostRank: -1})
	if err == nil {
		err = joinSession(ctx, client, &o, 1)
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	cfg := backend.Config{Rank: rank, Size: size, Control: client.Root(), Device: dev, Timeout: o.Timeout, Log: o.Log}
	var be backend.Backend
	opts := &host.Options{InProcess: hub}
	if be, err = host.New(ctx, cfg, opts); err == nil && o.CheckCalls {
		be = newCallChecker(ctx, be, cfg)
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	view := store.Prefix(kv, "group")
	var recorder *flight.Recorder
	if o.flight.Entries > 0 {
		if recorder, err = flight.New(nil, w.identity(), o.flight.Entries); err != nil {
			be.Close(ctx)
			dev.Close()
			return nil, err
		}
	}
	d := newWatchdogLoop(ctx, w, recorder, o)
	pg := newGroup(nil, "default", w, cfg, view, be, d, o.wrapBackend)
	var release releases
	release.addClose(dev.Close)
	release.add(func(ctx context.Context) error {
		client.Depart(ctx)
		return server.CloseIdle()
	})
	release.addClose(func() error { d.stop(); return nil })
	pg.release = append(release, pg.release...)
	return pg, nil
}
