package comm

import (
	"context"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
)

// exchange gathers every rank's integers on all ranks. Element r of the result holds the
// integers of rank r.
func (pg *ProcessGroup) exchange(ctx context.Context, mine []int64) ([][]int64, error) {
	counts := make([]int, pg.size)
	for r := range counts {
		counts[r] = len(mine)
	}
	data := device.HostTensor(mine, device.Int64).Buf.Host()
	all, err := gather(ctx, pg, device.Int64, data, counts)
	if err != nil {
		return nil, err
	}
	flat := make([]int64, len(all)/8)
	copy(device.HostTensor(flat, device.Int64).Buf.Host(), all)
	return slices.Collect(slices.Chunk(flat, len(mine))), nil
}

// gather concatenates the ranks' host data on all ranks. Rank r contributes counts[r] elements
// of type dt.
func gather(ctx context.Context, pg *ProcessGroup, dt device.DType, mine []byte, counts []int) ([]byte, error) {
	total := 0
	for _, n := range counts {
		total += n
	}
	part, err := pg.stage(dt, counts[pg.rank], mine)
	if err != nil {
		return nil, err
	}
	all, err := pg.stage(dt, total, nil)
	if err != nil {
		part.free()
		return nil, err
	}
	if err := pg.finish(ctx, pg.AllGatherUneven(all.t, part.t, counts), part, all); err != nil {
		return nil, err
	}
	part.free()
	return all.take(ctx)
}

// finish waits for a call that uses staged memory. If the call fails, finish frees the memory.
// If ctx ends before the call ends, a goroutine frees the memory when the call has ended.
func (pg *ProcessGroup) finish(ctx context.Context, w *Work, used ...staged) error {
	err := w.Sync(ctx)
	if err == nil {
		return nil
	}
	free := func() {
		for _, s := range used {
			s.free()
		}
	}
	if done, _ := w.Done(); done {
		free()
		return err
	}
	go func() { // ends with the call, which has a deadline; Close waits until the memory is free
		w.Sync(context.WithoutCancel(ctx))
		free()
	}()
	return err
}

// staged is device memory for a collective that sends or receives small values of the host. Until it is free, it holds
// a read lock of the group's staging.
type staged struct {
	*ProcessGroup
	t device.Tensor
}

// stage allocates n elements of type dt. If data is not nil, stage copies data to the elements. After Close the error is
// ErrClosed. Another error aborts the group, because the other ranks wait for this rank's collective. While a step is
// captured, an error aborts nothing: the step then runs uncaptured.
func (pg *ProcessGroup) stage(dt device.DType, n int, data []byte) (staged, error) {
	if !pg.staging.TryRLock() {
		return staged{}, ErrClosed
	}
	if pg.closing.Load() {
		pg.staging.RUnlock()
		return staged{}, ErrClosed
	}
	s, err := pg.newStaged(dt, n, data)
	if err != nil {
		pg.staging.RUnlock()
		if capture.Of(pg.dev) == nil {
			pg.Abort(err)
		}
	}
	return s, err
}

func (pg *ProcessGroup) newStaged(dt device.DType, n int, data []byte) (staged, error) {
	buf, err := pg.dev.Alloc(n * dt.Size())
	if err != nil {
		return staged{}, err
	}
	if data != nil {
		if err := pg.copyIn(buf, data); err != nil {
			pg.dev.Free(buf)
			return staged{}, err
		}
	}
	return staged{pg, device.NewTensor(buf, dt, n)}, nil
}

// awaitStaged waits until all staged memory is free. The caller has set closing, so that no more is allocated.
func (g *group) awaitStaged(ctx context.Context) error {
	if err := kernels.Poll(ctx, func() (bool, error) { return g.staging.TryLock(), nil }); err != nil {
		return fmt.Errorf("rank %d: a collective call still uses memory of the device: %w", g.world.Rank, err)
	}
	return nil
}

func (g *group) copyIn(dst device.Buffer, data []byte) error {
	if capture.Of(g.dev) == nil {
		if err := g.enter(g.watchdog.ctx, g.timeout); err != nil {
			return err
		}
		defer g.capturing.RUnlock()
	}
	return g.dev.CopyIn(g.dev.Compute(), dst, data)
}

// take copies the elements to the host and frees the device memory.
func (s staged) take(ctx context.Context) ([]byte, error) {
	defer s.free()
	data := make([]byte, s.t.Bytes())
	if capture.Of(s.dev) == nil {
		if err := s.enter(ctx, s.timeout); err != nil {
			return nil, err
		}
		defer s.capturing.RUnlock()
	}
	return data, s.dev.CopyOut(ctx, s.dev.Compute(), data, s.t.Buf)
}

func (s staged) free() {
	s.dev.Free(s.t.Buf)
	s.staging.RUnlock()
}
