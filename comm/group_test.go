package comm_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// vec returns a float32 tensor in host memory.
func vec(vs ...float32) device.Tensor { return device.HostTensor(vs, device.Float32) }

func vals(t device.Tensor) []float32 { return slices.Clone(device.Elements[float32](t)) }

func expect(got device.Tensor, want ...float32) error {
	if !slices.Equal(vals(got), want) {
		return fmt.Errorf("got %v, want %v", vals(got), want)
	}
	return nil
}

func TestCollectives(t *testing.T) {
	// Each function starts a collective on rank r of 3. It returns the Work, the tensor that receives
	// the result, and the elements that the tensor must hold in the end.
	collectives := map[string]func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32){
		"AllReduce": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			x := vec(r, 10)
			return pg.AllReduce(x, comm.Sum), x, []float32{3, 30}
		},
		"Broadcast": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			x := vec(r)
			return pg.Broadcast(x, 2), x, []float32{2}
		},
		"Reduce": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst, want := vec(-1), []float32{-1}
			if pg.Rank() == 1 {
				want = []float32{2}
			}
			return pg.Reduce(dst, vec(r), comm.Max, 1), dst, want
		},
		"AllGather": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst := vec(0, 0, 0)
			return pg.AllGather(dst, vec(r)), dst, []float32{0, 1, 2}
		},
		"AllGatherUneven": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			src, dst := make([]float32, pg.Rank()), vec(0, 0, 0)
			for i := range src {
				src[i] = r
			}
			return pg.AllGatherUneven(dst, device.HostTensor(src, device.Float32), []int{0, 1, 2}), dst, []float32{1, 2, 2}
		},
		"ReduceScatter": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst := vec(0)
			return pg.ReduceScatter(dst, vec(r, r+10, r+20), comm.Sum), dst, []float32{3 + 30*r}
		},
		"Gather": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst, want := vec(9, 9, 9), []float32{9, 9, 9}
			if pg.Rank() == 0 {
				want = []float32{0, 1, 2}
			}
			return pg.Gather(dst, vec(r), 0), dst, want
		},
		"Scatter": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst := vec(9)
			return pg.Scatter(dst, vec(r, r+10, r+20), 1), dst, []float32{1 + 10*r}
		},
		"AllToAll": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst := vec(0, 0, 0)
			return pg.AllToAll(dst, vec(r, r+10, r+20)), dst, []float32{10 * r, 10*r + 1, 10*r + 2}
		},
		"Send and Recv around a ring": func(pg *comm.ProcessGroup, r float32) (*comm.Work, device.Tensor, []float32) {
			dst := vec(9)
			n := pg.Size()
			next, before := (pg.Rank()+1)%n, (pg.Rank()+n-1)%n
			return pg.Coalesce(func(g *comm.ProcessGroup) {
				g.Send(vec(r), next)
				g.Recv(dst, before)
			}), dst, []float32{float32(before)}
		},
	}
	for name, start := range collectives {
		t.Run(name, func(t *testing.T) {
			commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
				w, got, want := start(pg, float32(pg.Rank()))
				if err := w.Wait(t.Context()); err != nil {
					return err
				}
				if done, err := w.Done(); !done || err != nil {
					return fmt.Errorf("done is %v, %v after Wait", done, err)
				}
				if b, e := w.Times(); b.Time().IsZero() || e.Time().Before(b.Time()) {
					return fmt.Errorf("ran from %v to %v", b.Time(), e.Time())
				}
				return expect(got, want...)
			})
		})
	}
}

func TestObjects(t *testing.T) {
	type config struct {
		Name  string
		LRs   []float64
		Extra map[string]int
		Zero  int
	}
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		// BroadcastObject must replace all fields of the other ranks' values, including fields whose new value is zero.
		got := config{"another", []float64{5, 6, 7}, map[string]int{"mine": 1}, 9}
		want := config{"model", []float64{0.1, 0.01}, map[string]int{"a": 1}, 0}
		if pg.Rank() == 1 {
			got = want
		}
		if err := comm.BroadcastObject(t.Context(), pg, &got, 1); err != nil {
			return err
		}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("broadcast %+v, want %+v", got, want)
		}
		mine := strings.Repeat("x", 10*pg.Rank())
		all, err := comm.AllGatherObject(t.Context(), pg, mine)
		if err != nil {
			return err
		}
		if lens := []string{"", strings.Repeat("x", 10), strings.Repeat("x", 20)}; !slices.Equal(all, lens) {
			return fmt.Errorf("gathered %q", all)
		}
		at0, err := comm.GatherObject(t.Context(), pg, pg.Rank(), 0)
		if err != nil {
			return err
		}
		if pg.Rank() == 0 && !slices.Equal(at0, []int{0, 1, 2}) || pg.Rank() != 0 && at0 != nil {
			return fmt.Errorf("gathered %v", at0)
		}
		if m := pg.Device().Memory(); m.InUse != 0 {
			return fmt.Errorf("%d bytes of device memory are left in use", m.InUse)
		}
		return nil
	})
}

// If one rank cannot encode its value, all ranks get an error, and the group still works.
func TestObjectsThatCannotBeEncoded(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		var v any = pg.Rank()
		if pg.Rank() == 1 {
			v = func() {}
		}
		_, gathered := comm.AllGatherObject(t.Context(), pg, v)
		if gathered == nil || !strings.Contains(gathered.Error(), "rank 1") {
			return fmt.Errorf("AllGatherObject: %v", gathered)
		}
		if err := comm.BroadcastObject(t.Context(), pg, &v, 1); err == nil || !strings.Contains(err.Error(), "rank 1") {
			return fmt.Errorf("BroadcastObject: %v", err)
		}
		return pg.Barrier().Wait(t.Context())
	})
}

func TestAgree(t *testing.T) {
	full, gone := errors.New("no room"), errors.New("no folder")
	commtest.OnRanks(t, 4, nil, func(pg *comm.ProcessGroup) error {
		if err := comm.Agree(t.Context(), pg, nil); err != nil {
			return err
		}
		met := []error{nil, full, gone, full}[pg.Rank()]
		err := comm.Agree(t.Context(), pg, met)
		if want := "ranks 1, 3: no room; rank 2: no folder"; err == nil || err.Error() != want {
			return fmt.Errorf("got %v, want %q", err, want)
		}
		for _, e := range []error{full, gone} {
			if errors.Is(err, e) != (e == met) {
				return fmt.Errorf("that the error wraps %q is %v", e, e != met)
			}
		}
		return nil
	})
}

// If the context of AllGatherObject ends, its device memory is freed when its collective has
// ended.
func TestCancelledExchangeFreesItsMemory(t *testing.T) {
	groups, _ := local(t, 2, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := comm.AllGatherObject(ctx, groups[0], 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for _, pg := range slices.Backward(groups) { // rank 1 closes first: it has not joined the collective
		pg.Close()
	}
	if m := groups[0].Device().Memory(); m.InUse != 0 {
		t.Errorf("%d bytes of device memory are left in use", m.InUse)
	}
}

func TestSplit(t *testing.T) {
	commtest.OnRanks(t, 5, nil, func(pg *comm.ProcessGroup) error {
		// Ranks 0 and 2 form a group in reverse order, ranks 1 and 3 form a group in order, and rank 4 is in no group.
		color, key := pg.Rank()%2, pg.Rank()
		if color == 0 {
			key = -pg.Rank()
		}
		if pg.Rank() == 4 {
			color = -1
		}
		sub, err := pg.Split(t.Context(), color, key)
		if err != nil {
			return err
		}
		if pg.Rank() == 4 {
			if sub != nil {
				return errors.New("a group for a negative color")
			}
			_, err := pg.Split(t.Context(), color, key)
			return err
		}
		defer sub.Close()
		wantRank := map[int]int{0: 1, 2: 0, 1: 0, 3: 1}[pg.Rank()]
		if sub.Rank() != wantRank || sub.Size() != 2 {
			return fmt.Errorf("rank %d of %d in the new group, want %d of 2", sub.Rank(), sub.Size(), wantRank)
		}
		x := vec(float32(pg.Rank()))
		if err := sub.AllReduce(x, comm.Sum).Wait(t.Context()); err != nil {
			return err
		}
		if err := expect(x, map[int]float32{0: 2, 1: 4}[color]); err != nil {
			return err
		}
		// A second Split with the same colors makes another group. Here its keys are negated, which reverses the order.
		again, err := pg.Split(t.Context(), color, -key)
		if err != nil {
			return err
		}
		if got, want := again.Rank(), 1-sub.Rank(); got != want {
			return fmt.Errorf("rank %d in the second split, want %d", got, want)
		}
		if err := again.Barrier().Wait(t.Context()); err != nil {
			return err
		}
		// A subgroup can be split as well.
		one, err := sub.Split(t.Context(), sub.Rank(), 0)
		if err != nil {
			return err
		}
		defer one.Close()
		if one.Size() != 1 {
			return fmt.Errorf("a group of %d, want 1", one.Size())
		}
		return one.Barrier().Wait(t.Context())
	})
}

func TestMismatchNamesBothCalls(t *testing.T) {
	groups, _ := local(t, 2, nil)
	each(groups, func(r int, pg *comm.ProcessGroup) {
		defer pg.Close()
		err := pg.With(&comm.CallOptions{Name: "bucket 7"}).AllReduce(device.HostTensor(make([]float32, 8+r), device.Float32), comm.Sum).Wait(t.Context())
		if !errors.As(err, new(*failure.MismatchError)) {
			t.Errorf("rank %d: %v", r, err)
		}
		for _, want := range []string{"8 elements", "9 elements", "AllReduce", "bucket 7", "rank 0", "rank 1"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("rank %d: %q lacks %q", r, err, want)
			}
		}
	})
}

// If a rank is missing, the calls of the other ranks time out after ten minutes. The test does
// not wait so long, because the clock of a synctest bubble jumps.
func TestTimeoutNamesTheRankThatDidNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, _ := local(t, 3, nil)
		start := time.Now()
		each(groups[:2], func(r int, pg *comm.ProcessGroup) {
			err := pg.Barrier().Wait(context.Background())
			if !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), "waiting for rank 2") {
				t.Errorf("rank %d: %v, want a timeout that names rank 2", r, err)
			}
			if took := time.Since(start); took < comm.DefaultTimeout || took > comm.DefaultTimeout+5*time.Second {
				t.Errorf("rank %d: after %v, want %v", r, took, comm.DefaultTimeout)
			}
		})
		closeAll(groups)
	})
}

func TestAbortEndsPendingAndLaterCalls(t *testing.T) {
	for _, cause := range []error{errors.New("the user had enough"), nil} {
		groups, _ := local(t, 2, nil)
		w := groups[0].Barrier()
		groups[0].Abort(cause)
		for what, err := range map[string]error{
			"the pending call": w.Wait(t.Context()), "a later call": groups[0].Barrier().Wait(t.Context()), "the other rank's call": groups[1].Barrier().Wait(t.Context()),
		} {
			isElsewhere := what == "the other rank's call"
			if !errors.Is(err, comm.ErrAborted) || strings.Contains(err.Error(), "nil") ||
				cause != nil && (!strings.Contains(err.Error(), cause.Error()) || errors.Is(err, cause) == isElsewhere) {
				t.Errorf("aborted with %v: %s: %v", cause, what, err)
			}
		}
		closeAll(groups)
		closeAll(groups) // a second Close does nothing
		if err := groups[1].Barrier().Wait(t.Context()); err == nil {
			t.Error("a call after Close succeeded")
		}
	}
}

// If the context of Sync ends, Sync returns, and the call goes on.
func TestCancelledSyncLeavesTheCallRunning(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		x := vec(1)
		if pg.Rank() == 1 {
			// Rank 0 sends after its Sync has returned.
			if err := pg.Recv(vec(0), 0).Sync(t.Context()); err != nil {
				return err
			}
			return pg.AllReduce(x, comm.Sum).Sync(t.Context())
		}
		w := pg.AllReduce(x, comm.Sum)
		ctx, cancel := context.WithCancelCause(t.Context())
		mine := errors.New("enough")
		cancel(mine)
		if err := w.Sync(ctx); !errors.Is(err, mine) {
			return fmt.Errorf("got %v, want the context's cause", err)
		}
		if err := pg.Send(vec(0), 1).Sync(t.Context()); err != nil {
			return err
		}
		if err := w.Sync(t.Context()); err != nil {
			return err
		}
		return expect(x, 2)
	})
}

// The backend of a subgroup gets the same wrapper as the backend of the parent group. Abort and
// Close of the parent group also end the subgroup.
func TestSubgroupsBelongToTheirParent(t *testing.T) {
	var wrapped atomic.Int32
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { wrapped.Add(1); return b })
	groups, _ := local(t, 2, opts)
	subs, err := split(t, groups)
	if err != nil {
		t.Fatal(err)
	}
	if n := wrapped.Load(); n != 4 {
		t.Errorf("%d backends were wrapped, want 4", n)
	}
	w := subs[0].Barrier()
	groups[0].Abort(errors.New("enough"))
	if err := w.Wait(t.Context()); !errors.Is(err, comm.ErrAborted) {
		t.Errorf("a call of the subgroup, after Abort of the parent: %v", err)
	}
	closeAll(groups) // goleak detects goroutines that a subgroup has left running
	if err := subs[1].Barrier().Wait(t.Context()); err == nil {
		t.Error("a call of the subgroup succeeded after Close of the parent")
	}
}

// truant is a backend whose Split fails at once on rank 2, so rank 2 does not take part in the
// Split of the other ranks.
type truant struct{ backend.Backend }

func (b truant) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	if members[cfg.Rank] == 2 {
		return nil, errors.New("elsewhere")
	}
	cfg.Timeout = 100 * time.Millisecond
	return b.Backend.Split(ctx, cfg, members)
}

// If a rank does not take part in Split, the error names that rank by its number in the group
// that is split.
func TestSplitNamesTheMissingRank(t *testing.T) {
	groups, _ := local(t, 3, commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return truant{b} }))
	errs := make([]error, 3)
	each(groups, func(r int, pg *comm.ProcessGroup) { _, errs[r] = pg.Split(t.Context(), min(r, 1), 0) })
	closeAll(groups)
	var absent *failure.AbsentError
	if !errors.As(errs[1], &absent) || !slices.Equal(absent.Ranks, []int{2}) || !strings.Contains(errs[1].Error(), "timed out after 100ms: rank 2 has not joined") {
		t.Errorf("%v, want that rank 2 has not joined", errs[1])
	}
}

// unwilling is a backend whose Split fails on rank 3.
type unwilling struct {
	backend.Backend
	err     error           // the error of Split on ranks 1 and 2; if it is nil, the wrapped backend's Split runs on these ranks
	arrived *sync.WaitGroup // counts the ranks that have called Split
}

func (b unwilling) Split(ctx context.Context, cfg backend.Config, members []int) (backend.Backend, error) {
	b.arrived.Done()
	switch {
	case members[cfg.Rank] == 3:
		return nil, errors.New("elsewhere")
	case b.err != nil && len(members) == 3:
		return nil, b.err
	}
	return b.Backend.Split(ctx, cfg, members)
}

// If a rank fails during Split, the errors name that rank by its number in the job. The rank
// may belong to the new group, or only to the group that is split.
func TestSplitNamesTheRankThatFailed(t *testing.T) {
	for _, c := range []struct {
		err     error
		culprit int
		said    string
	}{
		{&failure.JoinError{Rank: 3, Err: errors.New("no luck")}, 3, "color 1, ranks 1-3: rank 3 could not join: no luck"},
		{&failure.PeerLostError{Peer: 3}, 3, "color 1, ranks 1-3: rank 3 lost"},
		{nil, 0, "process group aborted: by rank 0: no luck"},
	} {
		var arrived sync.WaitGroup
		arrived.Add(4)
		groups, _ := local(t, 4, commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return unwilling{b, c.err, &arrived} }))
		if c.err == nil {
			go func() {
				arrived.Wait()
				groups[0].Abort(errors.New("no luck"))
			}()
		}
		errs := make([]error, len(groups))
		each(groups, func(r int, pg *comm.ProcessGroup) { _, errs[r] = pg.Split(t.Context(), min(r, 1), 0) })
		closeAll(groups)
		for _, err := range errs[1:3] {
			if culprit := comm.CausedBy(err); culprit == nil || *culprit != c.culprit || !strings.Contains(err.Error(), c.said) {
				t.Errorf("%v: want it caused by rank %d, and %q", err, c.culprit, c.said)
			}
		}
	}
}

// The end of Init's context does not end the groups that Init made.
func TestContextBoundsInitAlone(t *testing.T) {
	kv := store.NewLocal()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	groups, subs := make([]*comm.ProcessGroup, 2), make([]*comm.ProcessGroup, 2)
	each(groups, func(r int, _ *comm.ProcessGroup) {
		var err error
		if groups[r], err = comm.Init(ctx, &comm.Options{World: &comm.World{Rank: r, Size: 2, LocalRank: r}, Store: kv, ErrorMode: comm.CleanUpOnly}); err == nil {
			subs[r], err = groups[r].Split(ctx, 0, 0)
		}
		if err != nil {
			t.Error(err)
			cancel() // the other rank waits for this one
		}
	})
	if t.Failed() {
		return
	}
	cancel()
	for _, w := range []*comm.Work{groups[0].Barrier(), subs[0].Barrier(), groups[1].Barrier(), subs[1].Barrier()} {
		if err := w.Wait(t.Context()); err != nil {
			t.Errorf("after the end of Init's context: %v", err)
		}
	}
	closeAll(groups)
}

// Send and Recv are numbered separately from collectives, so ranks may make different numbers
// of them.
func TestSendsAreNotCollectives(t *testing.T) {
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		x := vec(1)
		switch pg.Rank() {
		case 0:
			pg.Send(vec(7), 1)
		case 1:
			if err := pg.Recv(x, 0).Wait(t.Context()); err != nil {
				return err
			}
		}
		if err := pg.AllReduce(x, comm.Sum).Wait(t.Context()); err != nil {
			return err
		}
		return expect(x, 9)
	})
}

// A call may have a timeout and a name of its own.
func TestTimeoutAndNameOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, _ := local(t, 2, nil)
		start := time.Now()
		err := groups[0].With(&comm.CallOptions{Timeout: 3 * time.Second, Name: "bucket 5"}).AllReduce(vec(1), comm.Sum).Wait(context.Background())
		var timeout *failure.TimeoutError
		if !errors.As(err, &timeout) || timeout.After != 3*time.Second || time.Since(start) > 4*time.Second || !strings.Contains(err.Error(), "bucket 5") {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		closeAll(groups)
	})
}

// Init returns an error for contradictory options.
func TestInvalidOptionsAreErrors(t *testing.T) {
	for want, w := range map[string]comm.World{
		"RANK 2 with WORLD_SIZE 2: want 0 <= RANK < WORLD_SIZE": {Rank: 2, Size: 2},
		"LOCAL_RANK 1 with LOCAL_WORLD_SIZE 1":                  {Size: 2, LocalRank: 1, LocalSize: 1},
		"LOCAL_WORLD_SIZE 3: want at most WORLD_SIZE 2":         {Size: 2, LocalSize: 3},
		"RANK 0 with WORLD_SIZE 0":                              {},
	} {
		if _, err := comm.Init(t.Context(), &comm.Options{World: &w}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", w, err, want)
		}
	}
	if _, err := comm.Local(1, &comm.Options{Timeout: -time.Second}); err == nil || !strings.Contains(err.Error(), "Timeout is -1s") {
		t.Errorf("a timeout of -1s: %v", err)
	}
	t.Setenv("OMP_NUM_THREADS", "0")
	if _, err := comm.Local(1, nil); err == nil || !strings.Contains(err.Error(), "OMP_NUM_THREADS") {
		t.Errorf("OMP_NUM_THREADS=0: %v", err)
	}
}

// PreMulSum with different factors computes a weighted mean over the ranks. Here one rank has
// the factor 0. Within a Coalesce it takes the factor of the Coalesce, unless it has a factor of its own.
func TestPreMulSum(t *testing.T) {
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		r := float32(pg.Rank())
		share := pg.With(&comm.CallOptions{Factor: new([]float64{0.25, 0.75, 0}[pg.Rank()])})
		mean := vec(4, 8, 100*r)
		if err := share.AllReduce(mean, comm.PreMulSum).Sync(t.Context()); err != nil {
			return err
		}
		x, y, z, sum := vec(r+1, 8), vec(r+1), vec(0), vec(r+1)
		err := pg.With(&comm.CallOptions{Factor: new(0.5), Name: "batch"}).Coalesce(func(g *comm.ProcessGroup) {
			g.AllReduce(x, comm.PreMulSum)
			g.With(&comm.CallOptions{Factor: new(2.0)}).AllReduce(y, comm.PreMulSum)
			g.With(&comm.CallOptions{Name: "scattered"}).ReduceScatter(z, vec(2, 4, 6), comm.PreMulSum)
			g.AllReduce(sum, comm.Sum)
			g.Broadcast(vec(1), 0)
		}).Sync(t.Context())
		if err != nil {
			return err
		}
		return errors.Join(expect(mean, 4, 8, 75), expect(x, 3, 12), expect(y, 12), expect(z, 3*(r+1)), expect(sum, 6))
	})
}

func TestUsageErrors(t *testing.T) {
	groups, _ := local(t, 1, nil)
	pg := groups[0]
	defer pg.Close()
	for name, c := range map[string]struct {
		call func()
		want string
	}{
		"root":      {func() { pg.Broadcast(vec(1), 1) }, "rank 1 is out of range for a group of 1"},
		"self":      {func() { pg.Send(vec(1), 0) }, "the peer is this rank, 0"},
		"sizes":     {func() { pg.AllGather(vec(1, 2, 3), vec(1)) }, "dst has 3 elements and src 1"},
		"types":     {func() { pg.AllGather(vec(1), device.HostTensor([]float64{1}, device.Float64)) }, "dst has type float32, but src has type float64"},
		"no tensor": {func() { pg.AllReduce(device.Tensor{}, comm.Sum) }, "dst is empty"},
		"reduction": {func() { pg.AllReduce(vec(1), comm.ReduceOp(9)) }, "reduction(9)"},
		"no factor": {func() { pg.AllReduce(vec(1), comm.PreMulSum) }, "premulsum needs a Factor"},
		"factor":    {func() { pg.With(&comm.CallOptions{Factor: new(0.5)}).AllReduce(vec(1), comm.Sum) }, "only premulsum"},
		"integers": {func() {
			pg.With(&comm.CallOptions{Factor: new(0.5)}).AllReduce(device.HostTensor([]int32{1}, device.Int32), comm.PreMulSum)
		}, "premulsum of type int32"},
		"counts": {func() { pg.AllGatherUneven(vec(1), vec(1), []int{1, 2}) }, "2 counts for a group of 1"},
		"sum":    {func() { pg.AllGatherUneven(vec(1, 2), vec(1), []int{1}) }, "the sum of counts is 1"},
		"batch":  {func() { pg.Coalesce(func(g *comm.ProcessGroup) { g.Broadcast(vec(1), 5) }) }, "rank 5"},
		"timeout": {func() {
			pg.Coalesce(func(g *comm.ProcessGroup) { g.With(&comm.CallOptions{Timeout: 1}).Barrier() })
		}, "CallOptions.Timeout is set within a Coalesce"},
		"late": {func() {
			var view *comm.ProcessGroup
			pg.Coalesce(func(g *comm.ProcessGroup) { view = g })
			view.Barrier()
		}, "after its Coalesce had ended"},
		"bytes":      {func() { pg.Alloc(-1) }, "rank 0: Alloc: -1 bytes"},
		"negative":   {func() { pg.AllGatherUneven(vec(), vec(1), []int{-1}) }, "counts[0] is -1"},
		"two levels": {func() { pg.Coalesce(func(g *comm.ProcessGroup) { g.Coalesce(func(*comm.ProcessGroup) {}) }) }, "within another"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				e, ok := recover().(*failure.UsageError)
				if !ok || !strings.Contains(e.Error(), c.want) {
					t.Errorf("panicked with %v, want a UsageError with %q", e, c.want)
				}
			}()
			c.call()
			t.Error("no panic")
		})
	}
}
