package collective

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
)

// Config says what to measure. It must be the same on every rank.
type Config struct {
	Collective *Collective
	// The sizes go from MinBytes to MaxBytes, each StepFactor times the previous one. They are
	// rounded down to whole elements or, if the collective scatters its data, to whole parts, but
	// at least one.
	MinBytes, MaxBytes, StepFactor int

	DType device.DType
	Op    comm.ReduceOp // used if the collective reduces
	Root  int           // used if the collective has a root

	Iters  int // calls that are timed together
	Warmup int // calls before the first measurement of each size
	Repeat int // number of measurements
	Checks int // number of calls after the measurements, whose results are checked

	// Graphs is the number of times that a measurement launches a CUDA graph of Iters calls; 0: it makes the calls without
	// a graph.
	Graphs int

	// Private allocates memory from the device, as for a program's own tensors, instead of
	// ProcessGroup.Alloc.
	Private bool
}

// Row is the measurement of one size.
type Row struct {
	Size  int     `json:"size"`    // bytes of the larger of a rank's tensors
	Count int     `json:"count"`   // the count that the call is given, in elements
	Type  string  `json:"type"`    // nccl-tests' name of the element type
	Op    string  `json:"redop"`   // the reduction; "none" if there is none
	Root  int     `json:"root"`    // -1: no root
	Time  float64 `json:"time_us"` // time of a call in microseconds
	AlgBW float64 `json:"algbw"`   // GB/s
	BusBW float64 `json:"busbw"`   // GB/s
	Wrong int     `json:"wrong"`   // number of wrong elements on all ranks in all checks; -1: not checked
}

// CheckRanks returns an error if n ranks cannot run the collective: the root must exist, and
// sendrecv needs at least two ranks.
func (cfg *Config) CheckRanks(n int) error {
	switch {
	case cfg.Collective.Rooted && (cfg.Root < 0 || cfg.Root >= n):
		return fmt.Errorf("root %d: want a rank, 0 to %d", cfg.Root, n-1)
	case cfg.Collective.needsPeers && n == 1:
		return fmt.Errorf("%s needs at least 2 ranks, but the job has 1", cfg.Collective.Name)
	}
	return nil
}

// Run measures a collective at each size. All ranks must call it. It calls report with the same
// rows on all ranks. If CheckRanks fails, Run returns its error before it communicates.
func Run(ctx context.Context, pg *comm.ProcessGroup, cfg Config, report func(Row) error) error {
	n := pg.Size()
	if err := cfg.CheckRanks(n); err != nil {
		return err
	}
	fillHeap()
	host := cpu.New(&cpu.Options{BLAS: cpu.Gonum})
	defer host.Close()
	b := &bench{Config: cfg, pg: pg, host: host}
	counts := cfg.counts(n)
	defer b.free()
	err := b.alloc(counts[len(counts)-1])
	if _, canCapture := pg.Device().(kernels.Capturer); cfg.Graphs > 0 && !canCapture {
		err = fmt.Errorf("CUDA graphs need a GPU, but the device of rank %d is %v", pg.Rank(), pg.Device())
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	for _, count := range counts {
		row, err := b.call(count).measure(ctx)
		if err != nil {
			return err
		}
		if err := report(row); err != nil {
			return err
		}
	}
	return nil
}

// counts returns the count of each size, without duplicates from rounding.
func (cfg *Config) counts(ranks int) []int {
	unit := cfg.DType.Size()
	if cfg.Collective.scattered() {
		unit *= ranks
	}
	var counts []int
	for size := cfg.MinBytes; ; size *= cfg.StepFactor {
		counts = append(counts, max(1, size/unit))
		if size > cfg.MaxBytes/cfg.StepFactor {
			return slices.Compact(counts)
		}
	}
}

// bench is one rank's part of a run.
type bench struct {
	Config
	pg       *comm.ProcessGroup
	host     device.Device // converts numbers
	src, dst device.Buffer // memory for the largest size
	round    uint64        // number of the latest pattern
}

// alloc allocates memory for the largest count.
func (b *bench) alloc(count int) (err error) {
	alloc := b.pg.Alloc
	if b.Private {
		alloc = b.pg.Device().Alloc
	}
	bytes := func(e extent) int { return e.elements(count, b.pg.Size()) * b.DType.Size() }
	if b.src, err = alloc(bytes(b.Collective.src)); err != nil || b.Collective.dst == inSrc {
		return err
	}
	b.dst, err = alloc(bytes(b.Collective.dst))
	return err
}

// free frees the memory that does not free itself.
func (b *bench) free() {
	if b.Private {
		b.pg.Device().Free(b.src)
		b.pg.Device().Free(b.dst)
	}
}

// call is the collective at one size.
type call struct {
	*bench
	count    int
	src, dst device.Tensor
}

func (b *bench) call(count int) *call {
	n, how := b.pg.Size(), b.Collective
	c := &call{bench: b, count: count, src: device.NewTensor(b.src, b.DType, how.src.elements(count, n))}
	c.dst = c.src
	if how.dst != inSrc {
		c.dst = device.NewTensor(b.dst, b.DType, how.dst.elements(count, n))
	}
	return c
}

// measure times and checks the call, and combines the results of all ranks.
func (c *call) measure(ctx context.Context) (Row, error) {
	mine, err := c.time(ctx)
	if err != nil {
		return Row{}, err
	}
	wrong := 0
	for range c.Checks {
		n, err := c.check(ctx)
		if err != nil {
			return Row{}, err
		}
		wrong += n
	}
	type found struct {
		Time  time.Duration
		Wrong int
	}
	ranks, err := comm.AllGatherObject(ctx, c.pg, found{mine, wrong})
	if err != nil {
		return Row{}, err
	}
	total := found{}
	for _, r := range ranks {
		total.Time = max(total.Time, r.Time)
		total.Wrong += r.Wrong
	}
	return c.row(total.Time, total.Wrong), nil
}

// row returns the row for a time and a number of wrong elements.
func (c *call) row(took time.Duration, wrong int) Row {
	r := Row{
		Size: max(c.src.Bytes(), c.dst.Bytes()), Count: c.count, Type: nameOf(types, c.DType),
		Op: "none", Root: -1, Time: float64(took) / 1e3, Wrong: wrong,
	}
	if c.Collective.Reduces {
		r.Op = nameOf(ops, c.Op)
	}
	if c.Collective.Rooted {
		r.Root = c.Root
	}
	if c.Checks == 0 {
		r.Wrong = -1
	}
	r.AlgBW = float64(r.Size) / max(1, float64(took)) // bytes per nanosecond
	r.BusBW = r.AlgBW * c.Collective.busFactor(float64(c.pg.Size()))
	return r
}

// time returns the time of one call among Iters on this rank: the median of Repeat measurements.
func (c *call) time(ctx context.Context) (time.Duration, error) {
	if err := c.pattern().fill(c.pg.Device(), c.src, c.pg.Rank()); err != nil {
		return 0, err
	}
	if _, err := c.calls(ctx, c.Warmup); err != nil {
		return 0, err
	}
	calls, run := c.Iters, func() (time.Duration, error) { return c.calls(ctx, c.Iters) }
	if c.Graphs > 0 {
		graph, err := c.capture(ctx)
		if err != nil {
			return 0, err
		}
		defer graph.Close()
		calls, run = c.Graphs*c.Iters, func() (time.Duration, error) { return c.replay(ctx, graph) }
	}
	times := make([]time.Duration, c.Repeat)
	for i := range times {
		for range 2 { // after the second barrier the ranks return at nearly the same time
			if err := c.pg.Barrier().Sync(ctx); err != nil {
				return 0, err
			}
		}
		took, err := run()
		if err != nil {
			return 0, err
		}
		times[i] = took / time.Duration(calls)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// calls starts n calls back to back and waits for the last one, which ends after all others.
func (c *call) calls(ctx context.Context, n int) (time.Duration, error) {
	var last *comm.Work
	start := time.Now()
	for range n {
		last = c.Collective.start(c)
	}
	if last != nil {
		if err := last.Sync(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// capture captures Iters calls.
func (c *call) capture(ctx context.Context) (*capture.Step, error) {
	return capture.Capture(ctx, c.pg.Device(), nil, func() error {
		var last *comm.Work
		for range c.Iters {
			last = c.Collective.start(c)
		}
		return last.Wait(ctx)
	})
}

// replay replays the captured calls Graphs times and waits for the last replay.
func (c *call) replay(ctx context.Context, graph *capture.Step) (time.Duration, error) {
	start := time.Now()
	for range c.Graphs {
		if err := graph.Replay(); err != nil {
			return 0, err
		}
	}
	err := c.pg.Device().Compute().Sync(ctx)
	return time.Since(start), err
}

// check runs one call on a new pattern and returns the number of wrong elements.
func (c *call) check(ctx context.Context) (int, error) {
	p, dev := c.pattern(), c.pg.Device()
	if err := p.fill(dev, c.src, c.pg.Rank()); err != nil {
		return 0, err
	}
	if err := c.Collective.start(c).Wait(ctx); err != nil {
		return 0, err
	}
	return p.wrong(ctx, dev, c.dst, c.Collective.want(c, p))
}

// pattern returns the pattern of the next round.
func (c *call) pattern() *pattern {
	c.round++
	return newPattern(c.host, c.round, &c.Config, c.pg.Size(), c.src.Len())
}
