//go:build cgo && linux

package nccl_test

import (
	"bytes"
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
	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// lateness is how long after its deadline a call may return on a busy machine. A call that no
// watchdog aborts ends only at the deadline of the test.
const lateness = 15 * time.Second

// second calls AllReduce twice. The first call must succeed; second returns the error of the
// second, whose timeout is given.
func second(m *backendtest.Rank, timeout time.Duration) error {
	for i := range 2 {
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		c.Timeout = soon
		if i == 1 {
			c.Timeout = timeout
		}
		task, err := m.Enqueue(c)
		if err == nil {
			if err := task.Join(context.Background(), m.Device.Compute()); err != nil {
				return err
			}
			err = task.Sync(context.Background())
		}
		if (err == nil) != (i == 0) {
			return fmt.Errorf("call %d ended with %v", i+1, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestEmulatedHungCollectiveTimesOut(t *testing.T) {
	control(t, "hang 1 2")
	members := world(t, 3)
	const timeout = 500 * time.Millisecond
	errs, took := backendtest.Outcomes(members, func(m *backendtest.Rank) error { return second(m, timeout) })
	if took > timeout+lateness {
		t.Errorf("took %v with a timeout of %v", took, timeout)
	}
	for r, err := range errs {
		var call *failure.CallError
		var late *failure.TimeoutError
		if !errors.As(err, &call) || call.Rank != r || call.Name != "ones" || !errors.As(err, &late) || !late.Running {
			t.Errorf("rank %d: %v, want its own call's error with a timeout while running", r, err)
		}
		if _, err := members[r].Start(&backend.Call{Kind: backend.Barrier}); !errors.Is(err, failure.ErrTimeout) {
			t.Errorf("rank %d: a later call: %v, want the first cause", r, err)
		}
		// The abort must end the call on its stream, since the compute stream waits for it.
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		if err := members[r].Device.Compute().Sync(ctx); err != nil {
			t.Errorf("rank %d: the compute stream is still held up: %v", r, err)
		}
		cancel()
	}
}

// NCCL reports an asynchronous error while calls are started without a pause. The group must break.
func TestEmulatedAsyncErrorIsFoundWhileCallsStart(t *testing.T) {
	control(t, "async 0 1")
	m := world(t, 1)[0]
	c, err := m.Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	if _, err := m.Enqueue(c); err != nil {
		t.Fatal(err)
	}
	for err == nil && time.Since(at) < soon {
		_, err = m.Start(&backend.Call{Kind: backend.Group})
		time.Sleep(100 * time.Microsecond) // short compared with watch's interval
	}
	var e *nccl.Error
	if !errors.As(err, &e) || time.Since(at) > lateness {
		t.Errorf("%v after %v, want what NCCL noticed", err, time.Since(at))
	}
}

func TestEmulatedAsyncErrorFailsOnAllRanks(t *testing.T) {
	control(t, "async 2 2")
	var others sync.WaitGroup // rank 2 fails only after the others have started the call, so that they fail with an error of it
	others.Add(2)
	errs, took := backendtest.Outcomes(world(t, 3), func(m *backendtest.Rank) error {
		if err := oneReduction(m); err != nil {
			return err
		}
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		if m.Rank == 2 {
			others.Wait()
		}
		task, err := m.Enqueue(c)
		if m.Rank != 2 {
			others.Done()
		}
		if err != nil {
			return err
		}
		return task.Sync(context.Background())
	})
	if took > soon {
		t.Errorf("took %v", took)
	}
	var e *nccl.Error
	if !errors.As(errs[2], &e) || e.Code != 6 || e.Detail == "" || e.Version != 22803 {
		t.Errorf("rank 2: %v, want NCCL's remote error, its words and its version", errs[2])
	}
	for r, err := range errs[:2] {
		var callErr *failure.CallError
		if !errors.As(err, &callErr) || callErr.Rank != r || !strings.Contains(err.Error(), "rank 2: ") || !strings.Contains(err.Error(), e.Error()) {
			t.Errorf("rank %d: %v, want its own call's error for rank 2's", r, err)
		}
	}
}

func TestEmulatedRefusedCallFailsOnAllRanks(t *testing.T) {
	control(t, "refuse 0 2")
	errs, _ := backendtest.Outcomes(world(t, 2), func(m *backendtest.Rank) error { return second(m, time.Minute) })
	var e *nccl.Error
	if !errors.As(errs[0], &e) || e.Call != "ncclAllReduce" || e.Detail != "refused on request" {
		t.Errorf("rank 0: %v, want what NCCL said", errs[0])
	}
	if errs[1] == nil || !strings.Contains(errs[1].Error(), "refused on request") {
		t.Errorf("rank 1: %v, want rank 0's cause", errs[1])
	}
}

// A call stays inside NCCL, on the caller's thread, even when it is aborted. Close must return,
// without freeing what the call uses.
func TestEmulatedCloseReturnsWhileACallIsStuck(t *testing.T) {
	for name, more := range map[string][]string{"aborted": nil, "aborted with an error": {"unwell 0"}} {
		t.Run(name, func(t *testing.T) { closeWhileStuck(t, more...) })
	}
}

func closeWhileStuck(t *testing.T, more ...string) {
	control(t, append(more, "stay 0 2")...)
	members := world(t, 2)
	if errs, _ := backendtest.Outcomes(members, func(m *backendtest.Rank) error {
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		return m.Run(c)
	}); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	m := members[0]
	c, err := m.Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan struct{})
	c.After = &reached{m.Device.Compute().Mark(), entered}
	go m.Enqueue(c) // returns when the fake NCCL releases it, at the end of the test
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- backendtest.CloseAll([]*backendtest.Rank{m}, 300*time.Millisecond) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "with 1 calls pending") {
			t.Errorf("%v, want that a call was pending", err)
		}
	case <-time.After(soon):
		t.Error("the group does not close")
	}
}

// reached wraps an event. It closes entered when the call's stream begins to wait for the event, which
// is just before NCCL is called.
type reached struct {
	device.Event
	entered chan<- struct{}
}

func (r *reached) Sync(ctx context.Context) error {
	close(r.entered)
	return r.Event.Sync(ctx)
}

// NCCL never returns from the first Send, which makes the connection.
func TestEmulatedHungConnectTimesOut(t *testing.T) {
	control(t, "connect 0 1")
	m := world(t, 2)[0]
	c, err := m.Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	// a Send in a Group uses the group's own communicator
	send := &backend.Call{Kind: backend.Send, Src: c.Src, Root: 1}
	task, err := m.Enqueue(&backend.Call{Kind: backend.Group, Calls: []*backend.Call{send}, Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := task.State(); state != backend.Queued {
		t.Errorf("%v, %v when Start returned: it waited", state, err)
	}
	at := time.Now()
	if err := task.Join(t.Context(), m.Device.Compute()); !errors.Is(err, failure.ErrTimeout) || time.Since(at) > 300*time.Millisecond+lateness {
		t.Errorf("%v after %v, want a timeout", err, time.Since(at))
	}
}

// The receiving rank never calls Recv.
func TestEmulatedSendWithoutRecvTimesOut(t *testing.T) {
	control(t)
	members := world(t, 2)
	c, err := members[0].Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	const timeout = 300 * time.Millisecond
	at := time.Now()
	err = members[0].Run(&backend.Call{Kind: backend.Send, Src: c.Src, Root: 1, Timeout: timeout})
	if !errors.Is(err, failure.ErrTimeout) || time.Since(at) > timeout+lateness {
		t.Errorf("%v after %v, want a timeout", err, time.Since(at))
	}
	err = backendtest.Poll(func() error {
		_, err := members[1].Start(&backend.Call{Kind: backend.Barrier})
		return err
	})
	if !errors.Is(err, failure.ErrTimeout) {
		t.Errorf("rank 1: %v, want rank 0's cause", err)
	}
}

// Rank 1 aborts while rank 0 knows of the failure but has not broken its group. The abort makes
// rank 0's calls end on the GPU, with invalid data. Those calls, one of NCCL and a small all-reduce
// of its result, must fail.
func TestEmulatedDataOfAbortedCallsIsNoResult(t *testing.T) {
	control(t, mapping)
	notified, release := make(chan struct{}), make(chan struct{})
	members, errs := attempt(t, 2, func(r int, cfg *backend.Config, _ *nccl.Options) {
		if r == 0 {
			cfg.Log = backendtest.HoldBreaking(notified, release)
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backendtest.CloseAll(members, soon) })
	if err := backendtest.Each(members, oneReduction); err != nil {
		t.Fatal(err)
	}
	// begin starts both calls. The second reduces a part of the first's result.
	begin := func(m *backendtest.Rank) (tasks [2]backend.Task) {
		c, err := m.Ones(large)
		if err != nil {
			t.Fatal(err)
		}
		part := c.Dst.Range(large-1000, large)
		for i, c := range []*backend.Call{c, {Kind: backend.AllReduce, Dst: part, Src: part}} {
			c.Timeout = soon
			if tasks[i], err = m.Enqueue(c); err != nil {
				t.Fatal(err)
			}
		}
		return tasks
	}
	begin(members[1])
	members[1].Abort(errors.New("no more"))
	<-notified
	tasks := begin(members[0])
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	compute := members[0].Device.Compute()
	if err := errors.Join(tasks[0].Join(ctx, compute), tasks[1].Join(ctx, compute), compute.Sync(ctx)); err != nil { // the calls have ended on the GPU
		t.Fatal(err)
	}
	for i, task := range tasks {
		if state, err := task.State(); state != backend.Running {
			t.Errorf("call %d: %v, %v, want that it runs until it fails", i, state, err)
		}
	}
	close(release)
	for i, task := range tasks {
		if err := task.Sync(ctx); err == nil || !strings.Contains(err.Error(), "no more") {
			t.Errorf("call %d: %v, want rank 1's reason", i, err)
		}
	}
}

// The group is aborted after a call has ended, before anything has checked its state.
func TestEmulatedAbortKeepsDoneCallsDone(t *testing.T) {
	control(t)
	m := world(t, 1)[0]
	c, err := m.Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	task, err := m.Enqueue(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(task.Join(t.Context(), m.Device.Compute()), m.Device.Compute().Sync(t.Context())); err != nil {
		t.Fatal(err)
	}
	m.Abort(errors.New("too late for that call"))
	if err := task.Sync(t.Context()); err != nil {
		t.Errorf("a call that was done: %v", err)
	}
}

// A process is killed while its peers wait for it in a collective.
func TestEmulatedKilledRankIsNamed(t *testing.T) {
	control(t)
	w := launch(t, "fakegpu", 3, "forever")
	w.awaitRounds()
	w[1].Cmd.Process.Kill()
	at := time.Now()
	for _, r := range []int{0, 2} {
		if how := w.said(r, "ended"); how != "lost 1 false" {
			t.Errorf("rank %d ended: %s", r, how)
		}
	}
	if took := time.Since(at); took > lateness {
		t.Errorf("noticed after %v", took)
	}
}

// Close waits for pending calls. Then it waits for the other ranks, until ctx ends.
func TestEmulatedCloseWaitsForCallsAndRanks(t *testing.T) {
	control(t, "delay 2000", "seed 1")
	members := world(t, 2)
	err := backendtest.Each(members, func(m *backendtest.Rank) error {
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		task, err := m.Enqueue(c)
		if err != nil {
			return err
		}
		if err := backendtest.CloseAll([]*backendtest.Rank{m}, soon); err != nil {
			return err
		}
		if state, err := task.State(); state != backend.Done {
			return fmt.Errorf("%v, %v after Close", state, err)
		}
		if _, err := m.Start(c); !errors.Is(err, failure.ErrClosed) {
			return fmt.Errorf("%v, want that the group is closed", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	alone := world(t, 2)[0]
	if err := backendtest.CloseAll([]*backendtest.Rank{alone}, 200*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing alone: %v, want that it took too long", err)
	}
}

// Two ranks on one GPU are refused. Errors in a group of ranks 2 and 0 number the ranks as the job does.
func TestEmulatedErrorsNameRanksOfTheJob(t *testing.T) {
	control(t, "hang 1 1")
	ranks := coordinatortest.Ranks(t, 3)
	part := func(name string, change func(cfg *backend.Config)) ([]*backendtest.Rank, []error) {
		return attempt(t, 2, func(r int, cfg *backend.Config, _ *nccl.Options) {
			of := []int{2, 0}
			var err error
			if cfg.Control, _, err = ranks[of[r]].Make(t.Context(), name, of, nil); err != nil {
				t.Error(err)
			}
			change(cfg)
		})
	}
	_, errs := part("shared", func(cfg *backend.Config) {
		dev, err := fakegpu.Open(0)
		if err != nil {
			t.Error(err)
		}
		t.Cleanup(func() { dev.Close() })
		cfg.Device = dev
	})
	for _, err := range errs {
		var shared *nccl.SharedGPUError
		if !errors.As(err, &shared) || shared.Ranks != [2]int{2, 0} || shared.GPU != "0000:00:00.0" {
			t.Errorf("%v, want ranks 2 and 0 on one GPU", err)
		}
	}
	members, errs := part("part", func(*backend.Config) {})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backendtest.CloseAll(members, soon) })
	c, err := members[0].Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	d, err := members[1].Ones(1000)
	if err != nil {
		t.Fatal(err)
	}
	task, err := members[0].Enqueue(&backend.Call{Kind: backend.Send, Src: c.Src, Root: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := members[1].Enqueue(&backend.Call{Kind: backend.Recv, Dst: d.Dst, Root: 0}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(soon); len(task.Waiting()) == 0 && time.Now().Before(deadline); runtime.Gosched() {
		task.State()
	}
	if waits := task.Waiting(); !slices.Equal(waits, []int{0}) {
		t.Errorf("waits for %v, want rank 0", waits)
	}
	members[1].Abort(errors.New("enough"))
	var call *failure.CallError
	if err := task.Sync(t.Context()); !errors.As(err, &call) || call.Rank != 2 || call.Group != "part" || !strings.Contains(call.Call, "to rank 0") || !strings.Contains(err.Error(), "by rank 0: enough") {
		t.Errorf("%v, want a call of rank 2 in the group that rank 0 aborted", err)
	}
}

func TestEmulatedOldLibraryIsRefused(t *testing.T) {
	control(t, "version 21805")
	_, errs := attempt(t, 1, nil)
	var old *nccl.VersionError
	if !errors.As(errs[0], &old) || !strings.Contains(errs[0].Error(), "2.19.1") || !strings.Contains(errs[0].Error(), "2.18.5") {
		t.Errorf("%v, want both versions", errs[0])
	}
}

// The error of every rank holds the places where that rank, or the rank that failed first, looked for the
// library.
func TestEmulatedMissingLibraryNamesThePlaces(t *testing.T) {
	control(t)
	t.Setenv("GODDP_LIBNCCL", "/nonexistent/libnccl.so")
	_, errs := attempt(t, 2, nil)
	for r, err := range errs {
		var missing *dl.NotFoundError
		if !errors.As(err, &missing) && !errors.As(err, new(*failure.JoinError)) { // the error of the rank that failed first
			t.Errorf("rank %d: %v, want the places tried", r, err)
		}
		if !strings.Contains(err.Error(), "/nonexistent/libnccl.so") {
			t.Errorf("rank %d: %v does not name the place", r, err)
		}
	}
}

func TestDeviceMustBeAGPU(t *testing.T) {
	dev := cpu.New(nil)
	defer dev.Close()
	_, err := nccl.New(t.Context(), backend.Config{Size: 1, Control: coordinatortest.Ranks(t, 1)[0], Device: dev}, nil)
	if err == nil || !strings.Contains(err.Error(), "cpu") {
		t.Errorf("%v, want that a CPU is no GPU", err)
	}
}

// churn allocates more memory than the device has, one buffer after the other. Each must be zeroed,
// and memory that nothing refers to must be freed.
func churn(m *backendtest.Rank, size int) error {
	for i := range 20 {
		var buf device.Buffer
		err := errors.New("none yet")
		for deadline := time.Now().Add(soon); err != nil && time.Now().Before(deadline); runtime.GC() {
			buf, err = m.Alloc(size)
		}
		if err != nil {
			return fmt.Errorf("allocation %d: %w", i, err)
		}
		x := device.NewTensor(buf, device.Uint8, size)
		got, err := m.Download(x)
		if err != nil {
			return err
		}
		if n := bytes.Count(got.Buf.Host(), []byte{0}); n != size {
			return fmt.Errorf("allocation %d: %d of %d bytes are zero", i, n, size)
		}
		part := x.Range(0, 1000)
		if err := m.Run(&backend.Call{Kind: backend.AllReduce, Src: part, Dst: part}); err != nil {
			return err
		}
	}
	_, err := m.Alloc(1 << 50)
	var oom *device.OutOfMemoryError
	if !errors.As(err, &oom) || oom.Asked != 1<<50 || oom.Free < 0 {
		return fmt.Errorf("%v, want how much was asked and how much is free", err)
	}
	return nil
}

func TestEmulatedUnusedMemoryIsReused(t *testing.T) {
	control(t, "memory 64000000")
	if err := backendtest.Each(world(t, 1), func(m *backendtest.Rank) error { return churn(m, 4<<20) }); err != nil {
		t.Error(err)
	}
}

// An Alloc fails while the GPU still clears the memory. The memory must not be freed before the GPU
// is done.
func TestEmulatedMemoryIsKeptWhileTheGPUClearsIt(t *testing.T) {
	release := control(t)
	members, errs := attempt(t, 1, func(_ int, cfg *backend.Config, _ *nccl.Options) { cfg.Timeout = time.Second })
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	m := members[0]
	t.Cleanup(func() { backendtest.CloseAll(members, soon) })
	alloc := func(lines ...string) error {
		if _, err := fakegpu.Control(lines...); err != nil {
			t.Fatal(err)
		}
		_, err := m.Alloc(1000)
		return err
	}
	if err := alloc("hold"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v from a stream that runs nothing", err)
	}
	if err := alloc(); err != nil || nccl.DeferredFrees(m.Backend) != 1 {
		t.Fatalf("%v, and of one block %d are kept that the GPU may write to", err, nccl.DeferredFrees(m.Backend))
	}
	release()
	for deadline := time.Now().Add(soon); nccl.DeferredFrees(m.Backend) > 0; runtime.Gosched() {
		if _, err := m.Alloc(1000); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v, and %d blocks are kept", err, nccl.DeferredFrees(m.Backend))
		}
	}
}

// An Alloc fails because no event can be recorded. Its memory is never freed; all other memory is.
func TestEmulatedFailedEventLeaksOneAllocation(t *testing.T) {
	release := control(t, "record 2")
	m := world(t, 1)[0]
	if _, err := m.Alloc(1000); err == nil {
		t.Fatal("Alloc succeeded although no event tells when the memory is zero")
	}
	release()
	for deadline := time.Now().Add(soon); nccl.DeferredFrees(m.Backend) > 0; runtime.Gosched() {
		if _, err := m.Alloc(1000); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v, and %d blocks are kept", err, nccl.DeferredFrees(m.Backend))
		}
	}
}

// A group is aborted before the kernel of a small all-reduce has begun. NCCL does not know of that
// kernel, so the memory it uses must not be freed.
func TestEmulatedMemoryOfAnAbortedKernelIsKept(t *testing.T) {
	control(t, mapping)
	members := world(t, 2)
	if _, err := fakegpu.Control(mapping, "hold"); err != nil {
		t.Fatal(err)
	}
	held := make([]device.Event, len(members))
	if err := backendtest.Each(members, func(m *backendtest.Rank) error {
		s, err := m.Device.NewStream(false)
		if err == nil {
			held[m.Rank] = s.Record()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := fakegpu.Control(mapping); err != nil {
		t.Fatal(err)
	}
	if err := backendtest.Each(members, func(m *backendtest.Rank) error {
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		c.After = held[m.Rank]
		_, err = m.Enqueue(c)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		m.Abort(errors.New("enough"))
	}
	for _, m := range members {
		for deadline := time.Now().Add(soon); nccl.DeferredFrees(m.Backend) == 0; runtime.GC() {
			if time.Now().After(deadline) {
				t.Fatal("the memory of a call that nothing refers to is not queued for freeing")
			}
		}
	}
	backendtest.CloseAll(members, soon)
	for _, m := range members {
		if nccl.DeferredFrees(m.Backend) != 1 {
			t.Errorf("rank %d gave memory back that its kernel has not used yet", m.Rank)
		}
	}
}
