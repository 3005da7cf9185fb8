package collective

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// Config is what to measure: the same on every rank.
type Config struct {
	Collective *Collective
	// Sizes go from MinBytes to MaxBytes, each StepFactor times the one before.
	// They are rounded down to whole elements, and whole parts for each rank
	// where the collective divides them, but not below one.
	MinBytes, MaxBytes, StepFactor int

	DType device.DType
	Op    comm.ReduceOp // of a collective that reduces
	Root  int           // of a collective that has one

	Iters  int // calls that are timed together
	Warmup int // calls before them, at each size
	Repeat int // how often they are timed
	Checks int // further calls, whose results are checked

	// Private takes memory from the device, as a program's own tensors do, and
	// not from ProcessGroup.Alloc.
	Private bool
}

// Row is what was measured at one size.
type Row struct {
	Size  int     `json:"size"`    // bytes of the larger of a rank's tensors
	Count int     `json:"count"`   // elements that the call is given
	Type  string  `json:"type"`    // nccl-tests' name of the element type
	Op    string  `json:"redop"`   // of the reduction; "none"
	Root  int     `json:"root"`    // -1: none
	Time  float64 `json:"time_us"` // of a call, in microseconds
	AlgBW float64 `json:"algbw"`   // GB/s
	BusBW float64 `json:"busbw"`   // GB/s
	Wrong int     `json:"wrong"`   // elements of all ranks and checks that were wrong; -1: not checked
}

// CheckRanks says whether so many ranks can run it: they must have the root, and a
// sendrecv takes two.
func (cfg *Config) CheckRanks(n int) error {
	switch {
	case cfg.Collective.Rooted && (cfg.Root < 0 || cfg.Root >= n):
		return fmt.Errorf("root %d: there are %d ranks", cfg.Root, n)
	case cfg.Collective.apart && n == 1:
		return fmt.Errorf("%s takes 2 ranks or more, here is 1", cfg.Collective.Name)
	}
	return nil
}

// Run measures a collective at each size. All ranks call it, and report is
// called with the same rows on each. The error of [Config.CheckRanks] comes before
// anything is sent.
func Run(ctx context.Context, pg *comm.ProcessGroup, cfg Config, report func(Row) error) error {
	n := pg.Size()
	if err := cfg.CheckRanks(n); err != nil {
		return err
	}
	FillHeap()
	host := cpu.New(&cpu.Options{BLAS: cpu.Gonum})
	defer host.Close()
	b := &bench{Config: cfg, pg: pg, host: host}
	counts := cfg.counts(n)
	defer b.free()
	if err := comm.Agree(ctx, pg, b.alloc(counts[len(counts)-1])); err != nil {
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

// counts are the counts of the sizes, without those that rounding made equal.
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
	src, dst device.Buffer // for the largest size
	round    uint64        // of the last pattern
}

// alloc allocates the memory of the largest count.
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

// free gives back what is not freed by itself.
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

// measure times the call, checks it, and puts together what the ranks found.
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

// row is the row of a time and a number of wrong elements.
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
	r.AlgBW = float64(r.Size) / max(1, float64(took)) // bytes in a nanosecond
	r.BusBW = r.AlgBW * c.Collective.busFactor(float64(c.pg.Size()))
	return r
}

// time is what a call takes this rank among Iters of them: the median of
// Repeat such times.
func (c *call) time(ctx context.Context) (time.Duration, error) {
	if err := c.pattern().fill(c.pg.Device(), c.src, c.pg.Rank()); err != nil {
		return 0, err
	}
	if _, err := c.calls(ctx, c.Warmup); err != nil {
		return 0, err
	}
	times := make([]time.Duration, c.Repeat)
	for i := range times {
		for range 2 { // a long wait ends late on some rank, a short one does not
			if err := c.pg.Barrier().Sync(ctx); err != nil {
				return 0, err
			}
		}
		took, err := c.calls(ctx, c.Iters)
		if err != nil {
			return 0, err
		}
		times[i] = took / time.Duration(c.Iters)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// calls makes n calls back to back and waits for the last one, behind all the
// others.
func (c *call) calls(ctx context.Context, n int) (time.Duration, error) {
	var last *comm.Work
	begun := time.Now()
	for range n {
		last = c.Collective.start(c)
	}
	if last != nil {
		if err := last.Sync(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

// check makes one call on fresh numbers and counts what is wrong in its result.
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

// pattern is that of the next round.
func (c *call) pattern() *pattern {
	c.round++
	return newPattern(c.host, c.round, &c.Config, c.pg.Size(), c.src.Len())
}
