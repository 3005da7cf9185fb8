package comm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/internal/coordinator"
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
	o := coordinator.Options{Log: j.Log}
	if j.survives {
		o.Elastic = &coordinator.Elastic{Min: 1, Kill: func(int, string) {}, Log: func(coordinator.Order) {}}
	}
	j.local = &localJob{hub: host.NewInProcess(), server: coordinator.NewServer(n, o), size: n}
	j.local.open.Store(int32(n))
	groups, errs := make([]*ProcessGroup, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		j := j
		j.world = World{Rank: r, Size: n, LocalRank: r, LocalSize: n}
		j.member.Rank, j.agent.Worker = r, r
		if j.survives {
			j.local.server.Started(r)
		}
		wg.Go(func() { groups[r], errs[r] = j.joinLocal() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, g := range groups {
			if g != nil {
				g.Close()
			}
		}
		j.local.server.Close()
		return nil, err
	}
	return groups, nil
}

// localJob is what the ranks of Local share.
type localJob struct {
	hub    *host.InProcess
	server *coordinator.Server
	size   int          // the number of ranks at the start
	open   atomic.Int32 // the number of groups that are not closed
}

// leave is called once for each group, when it is closed. The last call closes the coordinator. It counts groups and not
// connections, because the ranks have no connection while the members change.
func (l *localJob) leave() error {
	if l.open.Add(-1) > 0 {
		return nil
	}
	return l.server.Close()
}

// joinLocal makes the group of one rank of Local.
func (j *joiner) joinLocal() (_ *ProcessGroup, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), j.Timeout) // the ranks of one process join at once
	defer cancel()
	dev, err := openCPU(j.world, j.Log)
	if err != nil {
		return nil, err
	}
	h := &handle{joiner: j}
	h.kept.addClose(j.local.leave)
	h.kept.addClose(dev.Close)
	h.group, err = j.joinGroup(ctx, dev, func(release *releases) (*coordinator.Client, int, error) {
		client, err := j.openControl(ctx, 1, release)
		return client, 1, err
	})
	if err != nil {
		h.kept.run(ctx)
		return nil, err
	}
	return &ProcessGroup{handle: h}, nil
}
