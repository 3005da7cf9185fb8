package backendtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/testkit"
)

// lateness is how long after its deadline a call may return, on a busy machine.
const lateness = 15 * time.Second

// Suite is a backend to run the scenarios on.
type Suite struct {
	// Open makes a group of n ranks and closes it at the end of the test. If change is not nil, it
	// changes a rank's configuration first.
	Open func(t testing.TB, n int, change func(rank int, cfg *backend.Config)) []*Rank
	// SeesPeers is true if the backend compares the ranks' calls and knows for which ranks a
	// collective waits.
	SeesPeers bool
}

// Run runs the scenarios that hold for every backend.
func (s Suite) Run(t *testing.T) {
	t.Run("collectives", s.collectives)
	t.Run("send then receive", s.sendThenReceive)
	t.Run("timeout", s.timeout)
	t.Run("timeout while queued", s.timeoutWhileQueued)
	t.Run("abort", s.Abort)
	t.Run("second abort", s.secondAbort)
	t.Run("leave", s.leave)
	t.Run("close with a pending call", s.closeWithPendingCall)
	t.Run("split", s.split)
	t.Run("split of a breaking group", s.splitOfBreakingGroup)
	t.Run("failure in a subgroup", s.failureInSubgroup)
}

// begin starts an AllReduce of ones.
func (m *Rank) begin(count int, timeout time.Duration) (backend.Task, error) {
	c, err := m.Ones(count)
	if err != nil {
		return nil, err
	}
	c.Timeout = timeout
	return m.Enqueue(c)
}

// end waits for a call. If it fails, the compute stream, which waits for it, must not be blocked.
func (m *Rank) end(task backend.Task) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), Soon, errors.New("the call or the compute stream hangs"))
	defer cancel()
	task.Join(ctx, m.Device.Compute())
	if err := m.Device.Compute().Sync(ctx); err != nil {
		return err
	}
	return task.Sync(ctx)
}

// reduce runs an AllReduce of ones.
func (m *Rank) reduce(count int, timeout time.Duration) error {
	task, err := m.begin(count, timeout)
	if err != nil {
		return err
	}
	return m.end(task)
}

// Poll calls f until it returns an error, at most for Soon.
func Poll(f func() error) (err error) {
	for deadline := time.Now().Add(Soon); err == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		err = f()
	}
	return err
}

// startError returns the error of starting a call.
func (m *Rank) startError() error {
	_, err := m.Start(&backend.Call{Kind: backend.Barrier})
	return err
}

func (s Suite) collectives(t *testing.T) {
	for _, n := range []int{1, 3} {
		if err := Each(s.Open(t, n, nil), Collectives); err != nil {
			t.Errorf("%d ranks: %v", n, err)
		}
	}
}

// All ranks send first and then receive, twice with separate calls and then in a Group.
func (s Suite) sendThenReceive(t *testing.T) {
	ranks := s.Open(t, 3, nil)
	inGroups := []bool{false, false, true}
	if testkit.Race {
		inGroups = inGroups[1:]
	}
	for _, inGroup := range inGroups {
		if err := Each(ranks, func(m *Rank) error { return Exchange(m, inGroup) }); err != nil {
			t.Fatal(err)
		}
	}
}

// Rank 1 does not call. The calls of the others time out, and all later calls fail with that cause.
func (s Suite) timeout(t *testing.T) {
	for _, count := range []int{1000, 1 << 20} {
		ranks := s.Open(t, 3, nil)
		const timeout = 500 * time.Millisecond
		tasks := make([]backend.Task, 3)
		for _, r := range []int{2, 0} { // rank 0's deadline, the first one, passes when rank 2 has begun
			var err error
			if tasks[r], err = ranks[r].begin(count, timeout+time.Duration(r)*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		errs, took := Outcomes(ranks, func(m *Rank) error {
			if m.Rank == 1 {
				return nil
			}
			return m.end(tasks[m.Rank])
		})
		if took > timeout+lateness {
			t.Errorf("%d elements: took %v with a timeout of %v", count, took, timeout)
		}
		for _, r := range []int{0, 2} {
			var late *failure.TimeoutError
			var call *failure.CallError
			if !errors.As(errs[r], &late) || !errors.As(errs[r], &call) || call.Rank != r || call.Name != "ones" || !late.Running {
				t.Errorf("%d elements: rank %d: %v, want the error of its own call, with a timeout while running", count, r, errs[r])
			} else if s.SeesPeers && !slices.Contains(late.Waiting, 1) {
				t.Errorf("%d elements: rank %d: %v, want that it waited for rank 1", count, r, errs[r])
			}
		}
		for _, m := range ranks {
			if err := Poll(m.startError); !errors.Is(err, failure.ErrTimeout) {
				t.Errorf("%d elements: rank %d: a later call: %v, want the first cause", count, m.Rank, err)
			}
		}
	}
}

// A call times out while it is queued after one that waits for rank 1.
func (s Suite) timeoutWhileQueued(t *testing.T) {
	m := s.Open(t, 2, nil)[0]
	c, err := m.Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	running, err := m.Enqueue(c)
	if err != nil {
		t.Fatal(err)
	}
	for state := backend.Queued; state != backend.Running; runtime.Gosched() {
		if state, err = running.State(); err != nil {
			t.Fatal(err)
		}
	}
	queued, err := m.Enqueue(&backend.Call{Kind: backend.Barrier, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := queued.State(); state != backend.Queued {
		t.Errorf("%v, %v behind a call that runs", state, err)
	}
	if began, done := running.Span(); began.IsZero() || !done.IsZero() {
		t.Errorf("a running call's span is %v to %v", began, done)
	}
	var late *failure.TimeoutError
	if err := queued.Sync(t.Context()); !errors.As(err, &late) || late.Running {
		t.Errorf("%v, want a timeout while queued", err)
	}
	if err := running.Sync(t.Context()); !errors.Is(err, failure.ErrTimeout) {
		t.Errorf("%v, want the same cause", err)
	}
}

// Abort tests that an Abort on rank 0 ends the calls of all ranks. Rank 1 does not call. A second
// Abort changes nothing, and the group can be closed.
func (s Suite) Abort(t *testing.T) {
	ranks := s.Open(t, 3, nil)
	reason := errors.New("enough")
	errs, _ := Outcomes(ranks, func(m *Rank) error {
		if m.Rank == 1 {
			return nil
		}
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		task, err := m.Enqueue(c)
		if m.Rank == 0 {
			m.Abort(reason)
			m.Abort(errors.New("a second cause"))
		}
		if err != nil {
			return err
		}
		return task.Sync(context.Background())
	})
	if !errors.Is(errs[0], reason) {
		t.Errorf("rank 0: %v, want its reason", errs[0])
	}
	if want := "process group aborted: by rank 0: enough"; !errors.Is(errs[2], failure.ErrAborted) || !strings.HasSuffix(errs[2].Error(), want) {
		t.Errorf("rank 2: %q, want %q at its end", errs[2], want)
	}
	if err := ranks[0].startError(); !errors.Is(err, reason) {
		t.Errorf("rank 0: a later call: %v, want the first cause", err)
	}
	if err := CloseAll(ranks, Soon); err != nil {
		t.Error(err)
	}
}

// Abort of a group that is already breaking for another cause returns only when the peers know that
// cause.
func (s Suite) secondAbort(t *testing.T) {
	broke, release := make(chan struct{}), make(chan struct{})
	m := s.Open(t, 2, func(rank int, cfg *backend.Config) {
		if rank == 1 {
			cfg.Log = HoldBreaking(broke, release)
		}
	})[1]
	var wg sync.WaitGroup
	wg.Go(func() { m.Abort(errors.New("first")) })
	<-broke
	wg.Go(func() {
		m.Abort(errors.New("second"))
		select {
		case <-release:
		default:
			t.Error("the second Abort returned before the peers knew the first cause")
		}
	})
	time.Sleep(20 * time.Millisecond) // long enough for an Abort that does not wait to return
	close(release)
	wg.Wait()
}

// Rank 1 closes its group after a call of all ranks. A later call that needs it fails because it
// left.
func (s Suite) leave(t *testing.T) {
	for _, count := range []int{1000, 200_000} {
		ranks := s.Open(t, 3, nil)
		errs, _ := Outcomes(ranks, func(m *Rank) error {
			err := m.reduce(count, Soon)
			if m.Rank == 1 && err == nil {
				err = CloseAll([]*Rank{m}, Soon)
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if err := ranks[1].startError(); !errors.Is(err, failure.ErrClosed) {
			t.Errorf("%d elements: rank 1: a call after Close: %v", count, err)
		}
		errs, _ = Outcomes(ranks, func(m *Rank) error {
			switch m.Rank {
			case 0:
				return m.reduce(count, Soon)
			case 2:
				t, err := m.Upload(HostTensor(device.Float32, count))
				if err != nil {
					return err
				}
				return m.Run(&backend.Call{Kind: backend.Recv, Root: 1, Dst: t, Timeout: Soon})
			}
			return nil
		})
		for _, r := range []int{0, 2} {
			var lost *failure.PeerLostError
			if !errors.As(errs[r], &lost) || lost.Peer != 1 || !lost.Left {
				t.Errorf("%d elements: rank %d: %v, want that rank 1 left", count, r, errs[r])
			}
		}
	}
}

// Rank 1 does not call, so rank 0's call is pending when Close's context ends.
func (s Suite) closeWithPendingCall(t *testing.T) {
	m := s.Open(t, 2, nil)[0]
	c, err := m.Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	task, err := m.Enqueue(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Close(ctx); !errors.Is(err, failure.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v, want that the group is closed and the deadline passed", err)
	}
	if err := task.Sync(t.Context()); !errors.Is(err, failure.ErrClosed) {
		t.Errorf("the call: %v, want that the group is closed", err)
	}
}

// subgroup makes a group of the given ranks. members[i] becomes rank i.
func subgroup(t *testing.T, all []*Rank, members ...int) []*Rank {
	t.Helper()
	part := make([]*Rank, len(members))
	err := Each(all, func(m *Rank) error {
		at := slices.Index(members, m.Rank)
		if at < 0 {
			return nil
		}
		control, _, err := m.Control.Make(t.Context(), fmt.Sprint("of ranks ", members), members, nil)
		if err != nil {
			return err
		}
		b, err := m.Split(t.Context(), backend.Config{Rank: at, Size: len(members), Control: control, Device: m.Device, Timeout: Soon}, members)
		if err != nil {
			return err
		}
		part[at] = &Rank{Backend: b, Rank: at, Size: len(members), Device: m.Device, Control: control, AvgTolerance: m.AvgTolerance}
		_, err = control.Gather(t.Context(), coordinator.ReadyKey, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { CloseAll(part, Soon) })
	return part
}

// A group is split into two, and all three are used.
func (s Suite) split(t *testing.T) {
	all := s.Open(t, 4, nil)
	halves := [][]*Rank{subgroup(t, all, 0, 3), subgroup(t, all, 2, 1)}
	for _, ranks := range [][]*Rank{halves[0], all, halves[1]} {
		if err := Each(ranks, Trial{Kind: backend.AllReduce, Op: backend.Avg, DType: device.Float32, Count: 10_000}.Run); err != nil {
			t.Fatal(err)
		}
	}
	for _, ranks := range halves {
		if err := CloseAll(ranks, Soon); err != nil {
			t.Fatal(err)
		}
	}
}

// Rank 1 waits in Split for rank 0, which does not call it. The wait ends when the parent group
// breaks.
func (s Suite) splitOfBreakingGroup(t *testing.T) {
	ranks := s.Open(t, 2, nil)
	failed := make(chan error, 1)
	err := Each(ranks, func(m *Rank) error {
		control, _, err := m.Control.Make(t.Context(), "part", []int{0, 1}, nil)
		if err == nil && m.Rank == 1 {
			go func() {
				_, err := m.Split(context.Background(), backend.Config{Rank: 1, Size: 2, Control: control, Device: m.Device, Timeout: time.Hour}, []int{0, 1})
				failed <- err
			}()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ranks[0].Abort(errors.New("no more"))
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "no more") {
			t.Errorf("%v, want why the group broke", err)
		}
	case <-time.After(Soon):
		t.Error("Split does not return")
	}
}

// Rank 1 fails as rank 1 of a subgroup of ranks 3 and 1. The errors number the ranks as the job
// does. A failure also breaks the group of all ranks; an Abort by the program does not.
func (s Suite) failureInSubgroup(t *testing.T) {
	for name, c := range map[string]struct {
		fail          func(m *Rank)
		isCause       func(err error) bool
		isConfined    bool
		needsPeerView bool
	}{
		"leaves": {
			fail: func(m *Rank) { CloseAll([]*Rank{m}, Soon) },
			isCause: func(err error) bool {
				var lost *failure.PeerLostError
				return errors.As(err, &lost) && lost.Peer == 1 && lost.Left
			},
		},
		"differs": {
			fail: func(m *Rank) { m.Run(&backend.Call{Kind: backend.Barrier}) },
			isCause: func(err error) bool {
				var mismatch *failure.MismatchError
				return errors.As(err, &mismatch) && mismatch.Rank+mismatch.Peer == 4
			},
			needsPeerView: true,
		},
		"aborts": {
			fail: func(m *Rank) { m.Abort(nil) },
			isCause: func(err error) bool {
				var aborted *failure.AbortedError
				return errors.As(err, &aborted) && aborted.By == 1
			},
			isConfined: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.needsPeerView && !s.SeesPeers {
				t.Skip("the backend does not compare the ranks' calls")
			}
			all := s.Open(t, 4, nil)
			part := subgroup(t, all, 3, 1)
			var wg sync.WaitGroup
			wg.Go(func() { c.fail(part[1]) })
			err := part[0].reduce(100_000, Soon)
			wg.Wait()
			var call *failure.CallError
			if !c.isCause(err) {
				t.Errorf("rank 3: %v", err)
			} else if part[0].startError() != err && (!errors.As(err, &call) || call.Rank != 3 || call.Group != part[0].Control.Name) {
				t.Errorf("%v does not name rank 3 and the group", err)
			}
			if c.isConfined {
				err = Each(all, Trial{Kind: backend.AllReduce, DType: device.Float32, Count: 10_000}.Run)
			} else if err = all[0].reduce(100_000, Soon); c.isCause(err) {
				err = nil
			}
			if err != nil {
				t.Errorf("the group of all ranks: %v", err)
			}
		})
	}
}
