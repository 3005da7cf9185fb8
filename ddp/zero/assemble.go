package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// span describes the elements Lo to Hi of a tensor, which one rank has.
type span struct {
	Name   string
	DType  device.DType
	Shape  []int // the shape of the whole tensor
	Lo, Hi int
}

// held is a span with its elements. The code that makes a held must keep the owner of t's memory reachable, because
// the garbage collector frees the memory of unreachable variables.
type held struct {
	span
	t device.Tensor
}

// assemble gathers whole tensors from the spans of all ranks, one tensor after the other. On every rank it
// calls visit with each tensor. The tensors come in order of the lowest rank that has a span of them; the
// tensors of one such rank come in the order of its list. The parameter whole of visit is valid for work that
// visit enqueues on the compute stream. All ranks call assemble. If visit returns an error, assemble
// goes on gathering, and returns the error at the end. It sends each element to all ranks, and allocates
// memory for the largest tensor.
func assemble(ctx context.Context, pg *comm.ProcessGroup, mine []held, visit func(name string, whole device.Tensor) error) error {
	var spans []span
	for _, h := range mine {
		spans = append(spans, h.span)
	}
	all, err := comm.AllGatherObject(ctx, pg, spans)
	if err != nil {
		return err
	}
	type part struct {
		held // without the elements, if they are another rank's
		rank int
	}
	var names []string
	parts, size := map[string][]part{}, 0
	for rank, theirs := range all {
		for i, s := range theirs {
			if parts[s.Name] == nil {
				names = append(names, s.Name)
			}
			p := part{held{span: s}, rank}
			if rank == pg.Rank() {
				p.held = mine[i]
			}
			parts[s.Name] = append(parts[s.Name], p)
			size = max(size, device.Shape(s.Shape).Len()*s.DType.Size())
		}
	}
	dev := pg.Device()
	buf, err := dev.Alloc(size)
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	defer dev.Free(buf) // the device frees buf after the work that visit has enqueued
	var failed error
	for _, name := range names {
		first := parts[name][0]
		whole := device.NewTensor(buf, first.DType, first.Shape...)
		flat, covered := whole.Flat(), 0
		for _, p := range parts[name] {
			covered += p.Hi - p.Lo
			if p.rank != pg.Rank() || p.Lo == p.Hi {
				continue
			}
			if err := dev.Copy(dev.Compute(), flat.Range(p.Lo, p.Hi).Buf, p.t.Buf); err != nil {
				pg.Abort(err) // the other ranks would take incomplete data for the whole tensor
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if covered != whole.Len() {
			return fmt.Errorf("%s: the shards of all ranks have %d elements, want %d", name, covered, whole.Len())
		}
		work := pg.With(&comm.CallOptions{Name: name}).Coalesce(func(g *comm.ProcessGroup) {
			for _, p := range parts[name] {
				if p.Lo < p.Hi {
					g.Broadcast(flat.Range(p.Lo, p.Hi), p.rank)
				}
			}
		})
		// Sync makes sure that data which did not arrive is an error.
		if err := errors.Join(work.Wait(ctx), work.Sync(ctx)); err != nil {
			return errors.Join(failed, err)
		}
		if failed == nil {
			failed = visit(name, whole)
		}
	}
	return failed
}
