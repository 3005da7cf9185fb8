package comm

import (
	"context"
	"errors"
	"sync"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/flight"
)

// Local makes the n process groups of a job whose ranks are goroutines of this process. The
// goroutine that is rank r uses group r. Each group has its own device. The ranks exchange Go
// memory through channels, so the race detector sees the accesses of all ranks. Within a
// testing/synctest bubble, the bubble's clock drives the deadlines.
//
// Local ignores World, Store and Device of opts, and treats AsyncErrorHandling as CleanUpOnly:
// no rank ends the process or writes its flight record to a file. The caller must close every
// group.
func Local(n int, opts *Options) ([]*ProcessGroup, error) {
	j := joiner{Options: opts.orDefaults()}
	if err := j.readSettings(); err != nil {
		return nil, err
	}
	if j.ErrorMode == AsyncErrorHandling {
		j.ErrorMode = CleanUpOnly
	}
	j.env.Flight.DumpOnFailure = false
	hub := host.NewInProcess()
	server := coordinator.NewServer(n, coordinator.Options{Log: j.Log})
	groups, errs := make([]*ProcessGroup, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		j := j
		j.world = World{Rank: r, Size: n, LocalRank: r, LocalSize: n}
		wg.Go(func() { groups[r], errs[r] = j.joinLocal(hub, server) })
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
func (j *joiner) joinLocal(hub *host.InProcess, server *coordinator.Server) (_ *ProcessGroup, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), j.Timeout) // the ranks of one process join at once
	defer cancel()
	var release releases
	defer func() {
		if err != nil {
			release.run(ctx)
		}
	}()
	w := j.world
	dev, err := openCPU(w, j.Log)
	if err != nil {
		return nil, err
	}
	release.addClose(dev.Close)
	client, err := server.Local(w.Rank, coordinator.ClientOptions{Size: w.Size, Host: "this process", HostRank: -1})
	if err != nil {
		return nil, err
	}
	if err := j.joinSession(ctx, client, 1); err != nil {
		return nil, err
	}
	cfg := backend.Config{Rank: w.Rank, Size: w.Size, Control: client.Root(), Device: dev, Timeout: j.Timeout, Log: j.Log}
	var be backend.Backend
	if be, err = host.New(ctx, cfg, &host.Options{InProcess: hub}); err != nil {
		return nil, err
	}
	if j.CheckCalls {
		be = newCallChecker(ctx, be, cfg)
	}
	var recorder *flight.Recorder
	if f := j.env.Flight; f.Entries > 0 {
		id := w.identity()
		id.Job, id.Run = f.JobID, f.RunID
		if recorder, err = flight.New(nil, id, f.Entries); err != nil {
			be.Close(ctx)
			return nil, err
		}
	}
	release.add(func(ctx context.Context) error {
		client.Depart(ctx)
		return server.CloseIdle()
	})
	return j.start(ctx, nil, cfg, be, recorder, release), nil
}
