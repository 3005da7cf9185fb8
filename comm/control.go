package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
)

// openControl connects to the coordinator of this rank's n-th group. golaunch hosts the coordinator; under
// other launchers rank 0 hosts it. A process that is pending has one of its own.
func (j *joiner) openControl(ctx context.Context, n int64, release *releases) (*coordinator.Client, error) {
	w := j.world
	var client *coordinator.Client
	var err error
	co := coordinator.ClientOptions{Options: coordinator.Options{Log: j.Log}, Size: w.Size, Host: "rank 0", HostRank: 0}
	at, launched := j.coordinatorStore(j.kv, n), j.launched()
	switch {
	case j.local != nil && !j.isPending:
		co.Host, co.HostRank = "this process", -1
		client, err = j.local.server.Local(j.member.Rank, co)
	case j.isPending, !launched && w.Size == 1: // no other process has to reach the coordinator
		co.Size = 1
		server := coordinator.NewServer(1, co.Options)
		release.addClose(server.Close)
		client, err = server.Local(0, co)
	case !launched && w.Rank == 0:
		var listen string
		if listen, err = j.listenAddr(); err != nil {
			return nil, err
		}
		var server *coordinator.Server
		if server, err = coordinator.Publish(ctx, at, j.member, listen, w.Size, co); err != nil {
			return nil, fmt.Errorf("hosting the coordinator: %w", err)
		}
		release.addClose(server.Close)
		client, err = server.Local(0, co)
	default:
		co.Addr = j.agent.Coordinator
		client, err = coordinator.Find(ctx, at, j.member, co)
	}
	if err != nil {
		if !launched && (errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded)) {
			err = &failure.AbsentError{Ranks: []int{0}, Err: err}
		}
		return nil, err
	}
	release.add(func(ctx context.Context) error { depart(ctx, client); return nil })
	return client, nil
}

// depart leaves the session and ends the connection.
func depart(ctx context.Context, client *coordinator.Client) {
	ctx, cancel := awake.WithTimeout(ctx, leaveGrace)
	defer cancel()
	client.Depart(ctx)
}

// leaveGrace bounds how long the rank that hosts the store and the coordinator waits for the
// other ranks to leave. The wait needs a bound, because a rank that died never leaves.
const leaveGrace = 2 * time.Second

// coordinatorStore returns the part of the job's store that holds the address of the
// coordinator for a rank's n-th group.
func (j *joiner) coordinatorStore(kv store.Store, n int64) store.Store {
	if j.launched() {
		return store.Prefix(kv, coordinator.LauncherPrefix)
	}
	return store.Prefix(kv, fmt.Sprintf("goddp/%d/group/%d", j.world.Generation, n))
}

// joinSession joins a session of the coordinator, which compares the settings that must be equal on all ranks.
func (j *joiner) joinSession(ctx context.Context, client *coordinator.Client, session int) error {
	options := []coordinator.Option{
		{Name: jobenv.WorldSizeVar, Value: strconv.Itoa(j.world.Size)},
		{Name: "the check of calls (" + jobenv.DebugVar + "=DETAIL)", Value: onOff(j.CheckCalls)},
		{Name: "error handling", Value: onOff(j.ErrorMode != NoErrorHandling)},
	}
	if j.world.Rank == 0 {
		defer awake.Notice(j.notice, func() {
			logf(ctx, j.Log, slog.LevelInfo, "[Rank 0] waiting until all %d ranks have joined; giving up in %v", j.world.Size, time.Until(j.deadline).Round(time.Second))
		})()
	}
	if _, err := client.Join(ctx, session, options, j.ErrorMode == NoErrorHandling, nil); err != nil {
		return backend.GiveUp(client.Root(), err)
	}
	return nil
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// rejectRival is called if another process already uses this process's rank. It tries to join the
// session, so that the coordinator notices the duplicate rank. If the other process is still
// joining, the coordinator makes it fail as well, because nobody can tell which of the two belongs
// to the job. rejectRival returns an error that names both processes.
func (j *joiner) rejectRival(ctx context.Context, kv *store.Client) error {
	rival := kv.Rival()
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	n, err := kv.Add(ctx, groupsKey(j.world), 0)
	if err != nil || n == 0 {
		return rival
	}
	co := coordinator.ClientOptions{Size: j.world.Size, Addr: j.agent.Coordinator}
	client, err := coordinator.Find(ctx, j.coordinatorStore(kv, n), j.member, co)
	if err != nil {
		return rival
	}
	defer client.Close()
	client.Join(ctx, int(n), nil, false, nil) // must fail, because the other process has joined with this rank
	return rival
}
