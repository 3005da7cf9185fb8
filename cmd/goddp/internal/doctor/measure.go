package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// clockRounds is how often the ranks compare their clocks. The shortest round has the smallest error.
const clockRounds = 5

// MeasureClocks sets f's clock offset. All ranks call it. now is the rank's clock.
//
// All ranks read their clocks after a barrier. They leave the barrier within the duration of the round, so
// this duration bounds the error.
func MeasureClocks(ctx context.Context, pg *comm.ProcessGroup, f *Facts, now func() time.Time) error {
	f.ClockError = time.Hour
	for range clockRounds {
		start := time.Now()
		if err := pg.Barrier().Wait(ctx); err != nil {
			return err
		}
		clocks, err := comm.AllGatherInts(ctx, pg, []int64{now().UnixNano()})
		if err != nil {
			return err
		}
		if took := time.Since(start); took < f.ClockError {
			f.ClockOffset, f.ClockError = time.Duration(clocks[pg.Rank()][0]-clocks[0][0]), took
		}
	}
	return nil
}

// FirstRanks returns the first rank of each host. All ranks call it.
func FirstRanks(ctx context.Context, pg *comm.ProcessGroup, f *Facts) (first []int, err error) {
	nodes, err := comm.AllGatherInts(ctx, pg, []int64{int64(f.Node)})
	if err != nil {
		return nil, err
	}
	for r, node := range nodes {
		if int64(r) == node[0] {
			first = append(first, r)
		}
	}
	return first, nil
}

// pairRounds is how often a pair exchanges data. The fastest exchange counts, because other work on the
// hosts can only slow down an exchange.
const pairRounds = 3

// MeasurePairs measures how fast each rank in members, which are in order, exchanges data with its neighbours.
// f gets the pairs whose first rank is this one. All ranks must call it. A rank takes part in one pair at a
// time. A pair sends data there and back.
func MeasurePairs(ctx context.Context, pg *comm.ProcessGroup, f *Facts, members []int, size int) error {
	f.Pairs = nil
	buf, err := pg.Device().Alloc(size)
	if err != nil {
		return err
	}
	defer pg.Device().Free(buf)
	data := device.NewTensor(buf, device.Uint8, size)
	for _, round := range pairings(members) {
		if err := pg.Barrier().Wait(ctx); err != nil {
			return err
		}
		at := slices.IndexFunc(round, func(p [2]int) bool { return slices.Contains(p[:], pg.Rank()) })
		if at < 0 {
			continue
		}
		pair := round[at]
		peer := pair[0] + pair[1] - pg.Rank()
		fastest := time.Duration(0)
		for i := range 1 + pairRounds { // the first exchange establishes the connection
			start := time.Now()
			if err := pingPong(ctx, pg, data, pair, peer); err != nil {
				return err
			}
			if err := pg.Device().Compute().Sync(ctx); err != nil {
				return err
			}
			if took := time.Since(start); i == 1 || i > 1 && took < fastest {
				fastest = took
			}
		}
		if pair[0] == pg.Rank() {
			f.Pairs = append(f.Pairs, Pair{pair[0], pair[1], 2 * float64(size) / fastest.Seconds()})
		}
	}
	return pg.Barrier().Wait(ctx)
}

// pingPong sends data from the first rank of a pair to the second, and back.
func pingPong(ctx context.Context, pg *comm.ProcessGroup, data device.Tensor, pair [2]int, peer int) error {
	works := []func() *comm.Work{
		func() *comm.Work { return pg.Send(data, peer) },
		func() *comm.Work { return pg.Recv(data, peer) },
	}
	if pair[0] != pg.Rank() {
		slices.Reverse(works)
	}
	for _, start := range works {
		if err := start().Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pairings divides the neighbouring pairs in the ring of members into rounds. A member is in at most one
// pair per round.
func pairings(members []int) (rounds [][][2]int) {
	n := len(members)
	if n < 2 {
		return nil
	}
	rounds = make([][][2]int, 2)
	for i := range n - 1 {
		rounds[i%2] = append(rounds[i%2], [2]int{members[i], members[i+1]})
	}
	closing := [2]int{members[n-1], members[0]}
	switch {
	case n == 2:
		return rounds[:1]
	case n%2 == 0:
		rounds[1] = append(rounds[1], closing)
	default:
		rounds = append(rounds, [][2]int{closing})
	}
	return rounds
}

// products is how many products MeasureProduct runs after the first ones.
const products = 50

// MeasureProduct measures the speed of a matrix product in bfloat16, of matrices with n rows and columns, in
// TFLOPS.
func MeasureProduct(ctx context.Context, dev device.Device, n int) (tflops float64, err error) {
	buf, err := dev.Alloc(3 * 2 * n * n)
	if err != nil {
		return 0, err
	}
	defer dev.Free(buf)
	matrix := func(i int) device.Tensor { return device.NewTensor(buf.Slice(i*2*n*n, 2*n*n), device.BFloat16, n, n) }
	x, y, dst := matrix(0), matrix(1), matrix(2)
	k, s := kernels.Of(dev), dev.Compute()
	for i, t := range []device.Tensor{x, y} { // random numbers: zeros would take less power than a job does
		if err := k.Uniform(s, t, -1, 1, 1, uint64(i*n*n)); err != nil {
			return 0, err
		}
	}
	run := func(times int) error {
		for range times {
			if err := k.MatMul(s, dst, device.Store, x, false, y, false); err != nil {
				return err
			}
		}
		return s.Sync(ctx)
	}
	if err := run(products / 5); err != nil {
		return 0, fmt.Errorf("a matrix product on %v: %w", dev, err)
	}
	start := time.Now()
	if err := run(products); err != nil {
		return 0, fmt.Errorf("a matrix product on %v: %w", dev, err)
	}
	return 2 * float64(n) * float64(n) * float64(n) * products / time.Since(start).Seconds() / 1e12, nil
}
