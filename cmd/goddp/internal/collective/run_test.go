package collective

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// quick returns the configuration of a short run.
func quick(t *testing.T, name string) Config {
	t.Helper()
	return Config{
		Collective: collective(t, name), MinBytes: 256, MaxBytes: 1 << 10, StepFactor: 4,
		DType: device.Float32, Op: comm.Sum, Root: 1, Iters: 3, Warmup: 1, Repeat: 2, Checks: 1,
	}
}

// rows runs a configuration on n ranks and returns the rows, which must be equal on all ranks.
func rows(t *testing.T, n int, opts *comm.Options, cfg Config) []Row {
	t.Helper()
	byRank := make([][]Row, n)
	commtest.OnRanks(t, n, opts, func(pg *comm.ProcessGroup) error {
		return Run(t.Context(), pg, cfg, func(r Row) error {
			byRank[pg.Rank()] = append(byRank[pg.Rank()], r)
			return nil
		})
	})
	for r := range byRank {
		if fmt.Sprint(byRank[r]) != fmt.Sprint(byRank[0]) {
			t.Errorf("rank %d's rows are\n%v\nrank 0's\n%v", r, byRank[r], byRank[0])
		}
	}
	return byRank[0]
}

// Every collective gives the right result with every type and reduction, on numbers of ranks that
// do not divide the count. Without -long only all_reduce has all of them, a reduction other than the sum in float16 alone.
func TestEveryCollectiveIsRight(t *testing.T) {
	for _, name := range Names() {
		cfg := quick(t, name)
		cfg.MinBytes, cfg.Repeat = cfg.MaxBytes, 1
		reductions := ops
		if !cfg.Collective.Reduces {
			reductions = ops[:1]
		}
		for _, op := range reductions {
			for _, dt := range types {
				if !testkit.IsLong() && (name != "all_reduce" && (op.value != comm.Sum || dt.value != device.Float32) || op.value != comm.Sum && dt.value != device.Float16) {
					continue
				}
				for n := 3; n >= 2 && (n == 3 || testkit.IsLong()); n-- {
					cfg.DType, cfg.Op = dt.value, op.value
					for _, r := range rows(t, n, nil, cfg) {
						if r.Wrong != 0 || r.Time <= 0 || r.AlgBW <= 0 {
							t.Errorf("%s %s %s on %d ranks: %+v", name, op.name, dt.name, n, r)
						}
					}
				}
			}
		}
	}
}

// The size exceeds the pattern's period, and the memory comes from the device.
func TestLargeSizesInPrivateMemory(t *testing.T) {
	for _, name := range []string{"all_reduce", "all_to_all"} {
		cfg := quick(t, name)
		cfg.MinBytes, cfg.MaxBytes, cfg.Private, cfg.Iters, cfg.Repeat = 1<<20, 1<<20, true, 1, 1
		if got := rows(t, 3, nil, cfg); len(got) != 1 || got[0].Wrong != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestRowsDescribeTheCall(t *testing.T) {
	for name, want := range map[string]Row{
		"all_reduce":     {Size: 1 << 10, Count: 256, Op: "sum", Root: -1},
		"all_gather":     {Size: 1020, Count: 85, Op: "none", Root: -1},
		"reduce_scatter": {Size: 1020, Count: 85, Op: "sum", Root: -1},
		"broadcast":      {Size: 1 << 10, Count: 256, Op: "none", Root: 1},
		"reduce":         {Size: 1 << 10, Count: 256, Op: "sum", Root: 1},
		"all_to_all":     {Size: 1020, Count: 85, Op: "none", Root: -1},
		"sendrecv":       {Size: 1 << 10, Count: 256, Op: "none", Root: -1},
	} {
		cfg := quick(t, name)
		cfg.MinBytes, cfg.Checks = cfg.MaxBytes, 0
		got := rows(t, 3, nil, cfg)[0]
		want.Type, want.Wrong = "float", -1
		if moved := got.AlgBW * got.Time * 1e3; math.Abs(moved-float64(want.Size)) > 0.01 || got.BusBW != got.AlgBW*cfg.Collective.busFactor(3) {
			t.Errorf("%s: the bandwidths do not fit the time: %+v", name, got)
		}
		got.Time, got.AlgBW, got.BusBW = 0, 0, 0
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// slowBackend is a backend whose calls of one kind run one after the other and take the given
// durations.
type slowBackend struct {
	backend.Backend
	kind backend.Kind
	take *[]time.Duration
	end  *time.Time // end of the last call
}

func (l slowBackend) Start(c *backend.Call) (backend.Task, error) {
	task, err := l.Backend.Start(c)
	if err != nil || c.Kind != l.kind {
		return task, err
	}
	if now := time.Now(); l.end.Before(now) {
		*l.end = now
	}
	*l.end = l.end.Add((*l.take)[0])
	*l.take = (*l.take)[1:]
	return slowTask{task, *l.end}, nil
}

type slowTask struct {
	backend.Task
	end time.Time
}

func (l slowTask) Sync(ctx context.Context) error {
	time.Sleep(time.Until(l.end))
	return l.Task.Sync(ctx)
}

// A time is the mean over the calls of a measurement, then the median over the measurements, then
// the largest over the ranks. Warm-up calls and checks do not count.
func TestTimeIsTheLargestMedianOfMeans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		take := [][]time.Duration{
			{time.Hour, 1 * ms, 3 * ms, 20 * ms, 20 * ms, 3 * ms, 5 * ms, time.Hour}, // means 2, 20, 4
			{time.Hour, 7 * ms, 7 * ms, 2 * ms, 4 * ms, 1 * ms, 1 * ms, time.Hour},   // means 7, 3, 1
		}
		ranks := 0
		var mu sync.Mutex
		opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend {
			mu.Lock()
			defer mu.Unlock()
			ranks++
			return slowBackend{b, backend.AllReduce, &take[ranks-1], new(time.Time)}
		})
		cfg := quick(t, "all_reduce")
		cfg.MinBytes, cfg.Iters, cfg.Warmup, cfg.Repeat = cfg.MaxBytes, 2, 1, 3
		got := rows(t, 2, opts, cfg)[0]
		if got.Time != 4000 {
			t.Errorf("a call takes %v us, want 4000", got.Time)
		}
	})
}

func TestRunRefusesWhatRanksCannotRun(t *testing.T) {
	run := func(n int, cfg Config) error {
		var mu sync.Mutex
		var first error
		commtest.OnRanks(t, n, nil, func(pg *comm.ProcessGroup) error {
			err := Run(t.Context(), pg, cfg, func(Row) error { return nil })
			mu.Lock()
			defer mu.Unlock()
			first = err
			return nil
		})
		return first
	}
	cfg := quick(t, "broadcast")
	cfg.Root = 2
	if err := run(2, cfg); err == nil || err.Error() != "root 2: want a rank, 0 to 1" {
		t.Errorf("root 2 of 2: %v", err)
	}
	if err := run(1, quick(t, "sendrecv")); err == nil {
		t.Error("one rank sends to itself")
	}
	cfg = quick(t, "all_reduce")
	cfg.Graphs = 1
	if err := run(1, cfg); err == nil || !strings.Contains(err.Error(), "CUDA graphs need a GPU, but the device of rank 0 is cpu") {
		t.Errorf("graphs on a CPU: %v", err)
	}
}

// kinds are the calls that the collectives make.
var kinds = map[string]backend.Kind{
	"all_reduce": backend.AllReduce, "all_gather": backend.AllGather, "reduce_scatter": backend.ReduceScatter, "broadcast": backend.Broadcast,
	"reduce": backend.Reduce, "all_to_all": backend.AllToAll, "sendrecv": backend.Group,
}

// corruptingBackend changes one element of the result of the first call of a kind that is joined.
type corruptingBackend struct {
	backend.Backend
	kind backend.Kind
	done *atomic.Bool // shared by all ranks
}

func (s corruptingBackend) Start(c *backend.Call) (backend.Task, error) {
	task, err := s.Backend.Start(c)
	dst := c.Dst
	for _, m := range c.Calls {
		if m.Kind == backend.Recv {
			dst = m.Dst
		}
	}
	if err != nil || c.Kind != s.kind || dst.IsZero() {
		return task, err
	}
	return corruptingTask{task, dst, s.done}, nil
}

type corruptingTask struct {
	backend.Task
	dst  device.Tensor
	done *atomic.Bool
}

func (s corruptingTask) Join(ctx context.Context, stream device.Stream) error {
	err := s.Task.Join(ctx, stream)
	if err == nil && s.done.CompareAndSwap(false, true) {
		device.Elements[float32](s.dst)[s.dst.Len()-1]++
	}
	return err
}

func TestWrongElementIsCounted(t *testing.T) {
	for _, name := range Names() {
		var done atomic.Bool
		opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return corruptingBackend{b, kinds[name], &done} })
		cfg := quick(t, name)
		cfg.MinBytes, cfg.Checks = cfg.MaxBytes, 3
		if got := rows(t, 3, opts, cfg); len(got) != 1 || got[0].Wrong != 1 {
			t.Errorf("%s: one element was changed: %+v", name, got)
		}
	}
}

// idleBackend is a backend whose calls of one kind move no data, except for the first busy ones.
type idleBackend struct {
	backend.Backend
	kind backend.Kind
	busy int
}

func (i *idleBackend) Start(c *backend.Call) (backend.Task, error) {
	if c.Kind == i.kind && (c.DType() == device.Float32 || c.Kind == backend.Group) { // but not the objects that ranks exchange
		if i.busy--; i.busy < 0 {
			c = &backend.Call{Seq: c.Seq, Kind: backend.Barrier, After: c.After, Observer: c.Observer}
		}
	}
	return i.Backend.Start(c)
}

// Elements that no call, or only an earlier call, has moved are counted as wrong.
func TestElementsThatAreNotMovedAreWrong(t *testing.T) {
	for _, name := range Names() {
		for busy := range 2 {
			if busy == 0 && name != "all_reduce" && !testkit.IsLong() {
				continue
			}
			opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return &idleBackend{b, kinds[name], busy} })
			cfg := quick(t, name)
			cfg.MinBytes, cfg.Iters, cfg.Warmup, cfg.Repeat = cfg.MaxBytes, 1, 0, 1
			if got := rows(t, 3, opts, cfg)[0]; got.Wrong < got.Count/2 {
				t.Errorf("%s: nothing is moved but by %d calls, and of %d elements %d are wrong", name, busy, got.Count, got.Wrong)
			}
		}
	}
}
