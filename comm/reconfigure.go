package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/handshake"
)

// Progress says how many steps a rank has committed, and whether its state is consistent.
type Progress struct {
	Steps      int  // the number of committed steps
	Consistent bool // parameters and state are exactly the result of these steps
}

// Membership describes the members of a group after Reconfigure.
type Membership struct {
	Epoch int // the number of the membership, counted from 1
	Steps int // the last step that any member has committed
	// Lacking are the ranks whose state is not the result of that step. They must copy the state of the rank
	// Source. Source is -1 if no member has it.
	Lacking []int
	Source  int
}

// regroupTime bounds the time in which the members of an epoch connect to each other, if a quarter of Options.Timeout is
// less. All of them are ready when it begins.
const regroupTime = time.Minute

// ErrReleased is the error of Reconfigure in a process that shall end: the job goes on without it.
var ErrReleased = coordinator.ErrReleased

// Survives reports whether the job can go on when it loses ranks: golaunch --on-failure shrink or replace has
// started this process. Package elastic, which train.Run uses, then calls Reconfigure.
func (pg *ProcessGroup) Survives() bool {
	j := pg.joiner
	return j != nil && (j.agent.Survives || j.survives)
}

// Epoch returns the number of the group's membership, as Reconfigure returned it last, or 0.
func (pg *ProcessGroup) Epoch() int { return pg.epoch }

// Reconfigure gives the group its next members: those that are left when a call has failed because a rank was
// lost, and the processes that have joined the job. All ranks call it after such a failure. It waits until the
// processes of the lost ranks have ended. The first call declares that the program survives failures, and changes
// nothing: before all ranks have made it, the loss of a rank fails the job.
//
// The group keeps its device. Its Rank and Size may change. Memory that it has allocated stays valid, but later
// calls copy it. Groups that were split from it are closed.
//
// A process that replaces a lost one gets from Init a group with the rank and the size of the lost one's at the job's
// start, in which it is alone: gathers and broadcasts act as if all ranks had given the same values, and other calls
// fail. Reconfigure then makes it a member of the job.
//
// Reconfigure tries again if a rank is lost meanwhile. Its other errors mean that this process cannot go on.
// No other goroutine may use the group during the call.
func (pg *ProcessGroup) Reconfigure(ctx context.Context, p Progress) (Membership, error) {
	m, err := pg.reconfigure(ctx, p)
	if err != nil {
		return m, fmt.Errorf("rank %d: changing the members of the process group: %w", pg.world.Rank, err)
	}
	return m, nil
}

func (pg *ProcessGroup) reconfigure(ctx context.Context, p Progress) (Membership, error) {
	if !pg.Survives() {
		return Membership{}, errors.New("the job does not survive failures: want golaunch --on-failure shrink or replace")
	}
	limited := func() (context.Context, context.CancelFunc) {
		return awake.WithTimeoutCause(ctx, pg.timeout, fmt.Errorf("%w after %v", ErrTimeout, pg.timeout))
	}
	h, j := pg.handle, pg.joiner
	ready := coordinator.Ready{Epoch: h.epoch, Steps: p.Steps, Holds: p.Consistent, Patience: pg.timeout * 3 / 4}
	if h.epoch == 0 && j.isPending { // its state is not the job's
		ready = coordinator.Ready{}
	}
	if h.epoch == 0 && !j.isPending {
		pg.watchdog.survives.Store(true)
		ctx, cancel := limited()
		defer cancel()
		order, err := pg.control.Enter(ctx, ready)
		h.epoch = order.Epoch
		return membershipOf(order), err
	}
	for losses := 0; ; {
		try, cancel := limited()
		order, failed, err := h.regroup(try, ready)
		cancel()
		if isPeerLoss(err) {
			losses++
		}
		if err == nil || !failed || ctx.Err() != nil || losses > maxPeerLosses {
			return membershipOf(order), err
		}
		pg.log.Debug("comm: the members changed again", "rank", pg.rank, "cause", err)
		ready.Epoch = h.epoch
	}
}

// maxPeerLosses is the number of times that Reconfigure tries again because this rank could not connect with a peer
// that seems to have ended. After more of them, this rank may be at fault.
const maxPeerLosses = 3

// isPeerLoss reports whether err may say that a peer has ended, which the coordinator will notice too.
func isPeerLoss(err error) bool {
	var e *nccl.Error
	return handshake.IsHangUp(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &e) && e.IsPeerLoss()
}

func membershipOf(o coordinator.Order) Membership {
	return Membership{Epoch: o.Epoch, Steps: o.Steps, Lacking: o.Lacking, Source: o.Source}
}

// regroup leaves the group's epoch, waits for the next one, and makes the group of its members. failed says that the
// next epoch has failed already, and not because of this rank alone.
func (h *handle) regroup(ctx context.Context, ready coordinator.Ready) (order coordinator.Order, failed bool, err error) {
	j, old := h.joiner, h.group
	if err := old.close(); err != nil {
		old.log.Debug("comm: closing a broken process group", "error", err)
	}
	if err := old.dev.Compute().Sync(ctx); err != nil {
		return order, false, err
	}
	j.member.Rank, j.isPending, j.isElastic = j.agent.Worker, false, true
	if old.sharer != nil {
		old.sharer.Unmap()
	}
	var client *coordinator.Client
	g, err := j.joinGroup(ctx, old.dev, func(release *releases) (_ *coordinator.Client, _ int, err error) {
		if client, err = j.openControl(ctx, 0, release); err != nil {
			return nil, 0, err
		}
		if order, err = client.Root().Enter(ctx, ready); err != nil {
			return nil, 0, err
		}
		h.epoch = order.Epoch
		if old.sharer != nil {
			old.sharer.Free()
		}
		j.world.Rank, j.world.Size = client.Root().Rank(), len(order.Workers)
		if j.oneHost {
			j.world.LocalSize = j.world.Size
		}
		return client, order.Epoch, nil
	})
	if err != nil {
		if client != nil {
			f, rank := client.Root().Failure(), client.Root().Rank()
			isFault := func() bool {
				return f.Reporter == rank && !isPeerLoss(err) && (len(f.Absent) == 0 || slices.Contains(f.Absent, rank))
			}
			failed = f != nil && f.Kind != coordinator.Unreachable && !isFault()
		}
		return order, failed, err
	}
	g.stop = old.stop
	old.watchdog.mu.Lock()
	hooks := slices.Clone(old.watchdog.hooks)
	old.watchdog.mu.Unlock()
	for _, f := range hooks {
		g.watchdog.onShutdown(f)
	}
	if m := j.main; m != nil { // expireDeadlines may read the group
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	h.group = g
	return order, false, nil
}

// kill loses the rank, as if its process had died.
func (pg *ProcessGroup) kill() {
	worker, server := pg.joiner.member.Rank, pg.joiner.local.server
	pg.control.Lose()
	server.Gone(worker, "the test killed it", false)
}

// replacement makes the group of a process that replaces a lost rank of the job. Until Reconfigure it is pending.
func (pg *ProcessGroup) replacement(worker int) (*ProcessGroup, error) {
	j := *pg.joiner
	j.world, j.agent.Worker, j.isPending = World{Size: j.local.size, LocalSize: j.local.size}, worker, true
	j.local.open.Add(1)
	g, err := j.joinLocal()
	if err == nil {
		j.local.server.Started(worker)
	}
	return g, err
}

// makeRefusal allocates the word of backend.Refusal, which lives as long as the handle. The device frees it.
func (j *joiner) makeRefusal(dev device.Device) (err error) {
	if (j.agent.Survives || j.survives) && dev.Type() == device.CUDA {
		j.refusal, err = dev.AllocHost(8)
	}
	return err
}

// watchRefusal clears the word for a new group, and sets it when the group fails. No work that reads the word for an
// earlier group may be left on the device.
func (j *joiner) watchRefusal(control *coordinator.Group) {
	if j.refusal.Len() == 0 {
		return
	}
	word := (*uint64)(unsafe.Pointer(&j.refusal.Host()[0]))
	atomic.StoreUint64(word, 0)
	control.OnFailure(func() { atomic.StoreUint64(word, 1) })
}

func init() {
	backend.Refusal = func(pg any) device.Buffer {
		if j := pg.(*ProcessGroup).joiner; j != nil {
			return j.refusal
		}
		return device.Buffer{}
	}
	backend.Survive = func(options any) { options.(*Options).survives = true }
	backend.Kill = func(pg any) { pg.(*ProcessGroup).kill() }
	backend.Replacement = func(pg any, worker int) (any, error) { return pg.(*ProcessGroup).replacement(worker) }
}
