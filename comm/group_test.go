package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/device"
)

func TestMain(m *testing.M) {
	if worker, ok := workers[os.Getenv(workerMode)]; ok {
		Main(worker)
	}
	goleak.VerifyTestMain(m)
}

// onRanks runs f on n ranks of one process and reports their errors.
func onRanks(t *testing.T, n int, opts *Options, f func(pg *ProcessGroup) error) {
	t.Helper()
	groups, err := Local(n, opts)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, pg := range groups {
		wg.Go(func() {
			if err := f(pg); err != nil {
				t.Errorf("rank %d: %v", pg.Rank(), err)
				pg.Abort(err)
			}
		})
	}
	wg.Wait()
	for _, pg := range groups {
		if err := pg.Close(); err != nil {
			t.Errorf("rank %d: Close: %v", pg.Rank(), err)
		}
	}
}

// vec is a float32 tensor on the host.
func vec(vs ...float32) device.Tensor { return device.HostTensor(vs, device.Float32) }

func vals(t device.Tensor) []float32 { return slices.Clone(device.Elements[float32](t)) }

func expect(got device.Tensor, want ...float32) error {
	if !slices.Equal(vals(got), want) {
		return fmt.Errorf("got %v, want %v", vals(got), want)
	}
	return nil
}

func TestCollectives(t *testing.T) {
	// Each collective's own results, on 3 ranks whose data tells who sent it.
	collectives := map[string]func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32){
		"AllReduce": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			x := vec(r, 10)
			return pg.AllReduce(x, Sum), x, []float32{3, 30}
		},
		"Broadcast": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			x := vec(r)
			return pg.Broadcast(x, 2), x, []float32{2}
		},
		"Reduce": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst, want := vec(-1), []float32{-1}
			if pg.Rank() == 1 {
				want = []float32{2}
			}
			return pg.Reduce(dst, vec(r), Max, 1), dst, want
		},
		"AllGather": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst := vec(0, 0, 0)
			return pg.AllGather(dst, vec(r)), dst, []float32{0, 1, 2}
		},
		"AllGatherUneven": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			src, dst := make([]float32, pg.Rank()), vec(0, 0, 0)
			for i := range src {
				src[i] = r
			}
			return pg.AllGatherUneven(dst, device.HostTensor(src, device.Float32), []int{0, 1, 2}), dst, []float32{1, 2, 2}
		},
		"ReduceScatter": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst := vec(0)
			return pg.ReduceScatter(dst, vec(r, r+10, r+20), Sum), dst, []float32{3 + 30*r}
		},
		"Gather": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst, want := vec(9, 9, 9), []float32{9, 9, 9}
			if pg.Rank() == 0 {
				want = []float32{0, 1, 2}
			}
			return pg.Gather(dst, vec(r), 0), dst, want
		},
		"Scatter": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst := vec(9)
			return pg.Scatter(dst, vec(r, r+10, r+20), 1), dst, []float32{1 + 10*r}
		},
		"AllToAll": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst := vec(0, 0, 0)
			return pg.AllToAll(dst, vec(r, r+10, r+20)), dst, []float32{10 * r, 10*r + 1, 10*r + 2}
		},
		"Send and Recv around a ring": func(pg *ProcessGroup, r float32) (*Work, device.Tensor, []float32) {
			dst := vec(9)
			n := pg.Size()
			next, before := (pg.Rank()+1)%n, (pg.Rank()+n-1)%n
			return pg.Coalesce(func(g *ProcessGroup) {
				g.Send(vec(r), next)
				g.Recv(dst, before)
			}), dst, []float32{float32(before)}
		},
	}
	for name, start := range collectives {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 3, nil, func(pg *ProcessGroup) error {
				w, got, want := start(pg, float32(pg.Rank()))
				if err := w.Wait(t.Context()); err != nil {
					return err
				}
				if s, err := w.State(); s != Done || err != nil {
					return fmt.Errorf("state %v, %v after Wait", s, err)
				}
				if b, e := w.Begun().Time(), w.Ended().Time(); b.IsZero() || e.Before(b) {
					return fmt.Errorf("ran from %v to %v", b, e)
				}
				return expect(got, want...)
			})
		})
	}
}

func TestSeveralInFlight(t *testing.T) {
	onRanks(t, 4, nil, func(pg *ProcessGroup) error {
		var works []*Work
		var tensors []device.Tensor
		for i := range 100 {
			x := vec(float32(i * pg.Rank()))
			tensors = append(tensors, x)
			works = append(works, pg.AllReduce(x, Sum))
		}
		for i, w := range works {
			if err := w.Wait(t.Context()); err != nil {
				return err
			}
			if err := expect(tensors[i], float32(6*i)); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		return nil
	})
}

func TestObjects(t *testing.T) {
	type config struct {
		Name string
		LRs  []float64
	}
	onRanks(t, 3, nil, func(pg *ProcessGroup) error {
		var got config
		want := config{"model", []float64{0.1, 0.01}}
		if pg.Rank() == 1 {
			got = want
		}
		if err := BroadcastObject(t.Context(), pg, &got, 1); err != nil {
			return err
		}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("broadcast %+v, want %+v", got, want)
		}
		mine := strings.Repeat("x", 10*pg.Rank())
		all, err := AllGatherObject(t.Context(), pg, mine)
		if err != nil {
			return err
		}
		if lens := []string{"", strings.Repeat("x", 10), strings.Repeat("x", 20)}; !slices.Equal(all, lens) {
			return fmt.Errorf("gathered %q", all)
		}
		at0, err := GatherObject(t.Context(), pg, pg.Rank(), 0)
		if err != nil {
			return err
		}
		if pg.Rank() == 0 && !slices.Equal(at0, []int{0, 1, 2}) || pg.Rank() != 0 && at0 != nil {
			return fmt.Errorf("gathered %v", at0)
		}
		return nil
	})
}

func TestSplit(t *testing.T) {
	onRanks(t, 5, nil, func(pg *ProcessGroup) error {
		// Even ranks in reverse order, odd ranks in order, rank 4 in none.
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
			return nil
		}
		defer sub.Close()
		wantRank := map[int]int{0: 1, 2: 0, 1: 0, 3: 1}[pg.Rank()]
		if sub.Rank() != wantRank || sub.Size() != 2 {
			return fmt.Errorf("rank %d of %d in the new group, want %d of 2", sub.Rank(), sub.Size(), wantRank)
		}
		x := vec(float32(pg.Rank()))
		if err := sub.AllReduce(x, Sum).Wait(t.Context()); err != nil {
			return err
		}
		if err := expect(x, map[int]float32{0: 2, 1: 4}[color]); err != nil {
			return err
		}
		// A group can be split again, and the parent still works.
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
	groups, err := Local(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for r, pg := range groups {
		wg.Go(func() {
			defer pg.Close()
			errs[r] = pg.With(CallOptions{Name: "bucket 7"}).AllReduce(device.HostTensor(make([]float32, 8+r), device.Float32), Sum).Wait(t.Context())
		})
	}
	wg.Wait()
	for r, err := range errs {
		var m *MismatchError
		if !errors.As(err, &m) {
			t.Fatalf("rank %d: %v", r, err)
		}
		for _, want := range []string{"8 elements", "9 elements", "AllReduce", "bucket 7", "rank 0", "rank 1"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %q lacks %q", r, err, want)
			}
		}
	}
}

// A rank that does not come is a timeout on the others after ten minutes, in
// no time: the bubble's clock drives the deadline.
func TestTimeoutNamesTheRankThatDidNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, err := Local(3, nil)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var wg sync.WaitGroup
		for _, pg := range groups[:2] {
			wg.Go(func() {
				err := pg.Barrier().Wait(context.Background())
				if !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrAborted) {
					t.Errorf("rank %d: %v", pg.Rank(), err)
				}
				if !strings.Contains(err.Error(), "[2]") {
					t.Errorf("rank %d: %q does not name rank 2", pg.Rank(), err)
				}
				if took := time.Since(begun); took < DefaultTimeout || took > DefaultTimeout+5*time.Second {
					t.Errorf("rank %d: after %v, want %v", pg.Rank(), took, DefaultTimeout)
				}
			})
		}
		wg.Wait()
		for _, pg := range groups {
			pg.Close()
		}
	})
}

func TestAbortEndsPendingAndLaterCalls(t *testing.T) {
	cause := errors.New("the user had enough")
	groups, err := Local(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := groups[0].Barrier()
	groups[0].Abort(cause)
	if err := w.Wait(t.Context()); !errors.Is(err, ErrAborted) || !errors.Is(err, cause) {
		t.Errorf("the pending call: %v", err)
	}
	if err := groups[0].Barrier().Wait(t.Context()); !errors.Is(err, ErrAborted) || !errors.Is(err, cause) {
		t.Errorf("a later call: %v", err)
	}
	if err := groups[1].Barrier().Wait(t.Context()); err == nil {
		t.Error("the other rank's call succeeded")
	}
	for _, pg := range groups {
		pg.Close()
	}
	if err := groups[1].Barrier().Wait(t.Context()); err == nil {
		t.Error("a call after Close succeeded")
	}
}

func TestAWaitThatIsGivenUpLeavesTheCall(t *testing.T) {
	onRanks(t, 2, nil, func(pg *ProcessGroup) error {
		x := vec(1)
		if pg.Rank() == 1 {
			// Rank 0 has given up its wait by the time it sends.
			if err := pg.Recv(vec(0), 0).Sync(t.Context()); err != nil {
				return err
			}
			return pg.AllReduce(x, Sum).Sync(t.Context())
		}
		w := pg.AllReduce(x, Sum)
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

func TestUsageErrors(t *testing.T) {
	groups, err := Local(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	pg := groups[0]
	defer pg.Close()
	for name, c := range map[string]struct {
		call func()
		want string
	}{
		"root":       {func() { pg.Broadcast(vec(1), 1) }, "rank 1 of a group of 1"},
		"self":       {func() { pg.Send(vec(1), 0) }, "rank 0 itself"},
		"sizes":      {func() { pg.AllGather(vec(1, 2, 3), vec(1)) }, "dst has 3 elements and src 1"},
		"types":      {func() { pg.AllGather(vec(1), device.HostTensor([]float64{1}, device.Float64)) }, "dst is float32, src is float64"},
		"no tensor":  {func() { pg.AllReduce(device.Tensor{}, Sum) }, "no dst"},
		"reduction":  {func() { pg.AllReduce(vec(1), ReduceOp(9)) }, "reduction(9)"},
		"counts":     {func() { pg.AllGatherUneven(vec(1), vec(1), []int{1, 2}) }, "2 counts for a group of 1"},
		"sum":        {func() { pg.AllGatherUneven(vec(1, 2), vec(1), []int{1}) }, "counts sum to 1"},
		"batch":      {func() { pg.Coalesce(func(g *ProcessGroup) { g.Broadcast(vec(1), 5) }) }, "rank 5"},
		"two levels": {func() { pg.Coalesce(func(g *ProcessGroup) { g.Coalesce(func(*ProcessGroup) {}) }) }, "within another"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				e, ok := recover().(*UsageError)
				if !ok || !strings.Contains(e.Error(), c.want) {
					t.Errorf("panicked with %v, want a UsageError with %q", e, c.want)
				}
			}()
			c.call()
			t.Error("no panic")
		})
	}
}
