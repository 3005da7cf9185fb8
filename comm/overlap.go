package comm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// extent is the range of addresses [lo, hi) that an operand occupies. Host addresses and GPU
// addresses never coincide, so extents of all devices can be compared.
type extent struct{ lo, hi uintptr }

func extentOf(t *device.Tensor) extent {
	lo := t.Buf.Addr()
	return extent{lo, lo + uintptr(t.Bytes())}
}

// overlaps reports whether e and o have a byte in common.
func (e extent) overlaps(o extent) bool { return max(e.lo, o.lo) < min(e.hi, o.hi) }

func (e extent) String() string { return fmt.Sprintf("[%#x, %#x)", e.lo, e.hi) }

// slot returns this rank's part of e, the addresses of an operand of call c. The operand must
// have one part for each rank.
func (pg *ProcessGroup) slot(e extent, c *backend.Call) extent {
	if c.Counts == nil {
		part := (e.hi - e.lo) / uintptr(pg.size)
		return extent{e.lo + uintptr(pg.rank)*part, e.lo + uintptr(pg.rank+1)*part}
	}
	at := 0
	for _, n := range c.Counts[:pg.rank] {
		at += n
	}
	size := c.DType().Size()
	return extent{e.lo + uintptr(at*size), e.lo + uintptr((at+c.Counts[pg.rank])*size)}
}

// validateOverlap rejects call c if its dst and src share memory, except in the way that NCCL
// defines for the call's kind. The caller must have validated that both tensors are given and
// that their lengths match.
func (pg *ProcessGroup) validateOverlap(c *backend.Call) {
	if c.Kind == backend.AllReduce || c.Kind == backend.Broadcast { // for these kinds dst and src are the same tensor
		return
	}
	dst, src := extentOf(&c.Dst), extentOf(&c.Src)
	if !dst.overlaps(src) {
		return
	}
	switch c.Kind {
	case backend.Reduce:
		if src != dst {
			pg.reject(c, "dst %v overlaps src %v: in place, src is dst", dst, src)
		}
	case backend.AllGather, backend.Gather:
		if mine := pg.slot(dst, c); src != mine {
			pg.reject(c, "dst %v overlaps src %v: in place, src is rank %d's part of dst, %v", dst, src, pg.rank, mine)
		}
	case backend.ReduceScatter, backend.Scatter:
		if mine := pg.slot(src, c); dst != mine {
			pg.reject(c, "dst %v overlaps src %v: in place, dst is rank %d's part of src, %v", dst, src, pg.rank, mine)
		}
	default:
		pg.reject(c, "dst %v overlaps src %v: want separate buffers, %v has no in-place form", dst, src, c.Kind)
	}
}

// access is a range of memory that one call of a Coalesce reads or writes. Two accesses of the
// same call never overlap.
type access struct {
	extent
	writes bool
	call   *backend.Call
}

// validateCoalesced rejects a Coalesce if one of its calls writes memory that another of its
// calls reads or writes, because the calls run in any order. The caller must have passed each
// of the calls to validateOverlap.
func (pg *ProcessGroup) validateCoalesced(group *backend.Call) {
	all := make([]access, 0, 2*len(group.Calls))
	add := func(e extent, writes bool, c *backend.Call) {
		if e.lo < e.hi {
			all = append(all, access{e, writes, c})
		}
	}
	for _, c := range group.Calls {
		dst, src := extentOf(&c.Dst), extentOf(&c.Src)
		add(dst, true, c)
		if dst.overlaps(src) { // the call works in place: besides dst, it reads only the parts of src outside dst
			add(extent{src.lo, dst.lo}, false, c)
			src.lo = dst.hi
		}
		add(src, false, c)
	}
	slices.SortFunc(all, func(a, b access) int { return cmp.Compare(a.lo, b.lo) })
	var reached, written access // reached is the access so far with the highest end address; written is the same among the writes
	for _, a := range all {
		before := written
		if a.writes {
			before = reached
		}
		if before.hi > a.lo {
			pg.reject(group, "%v overlaps %v: a call of a Coalesce must not write memory that another one uses", before, a)
		}
		if a.hi > reached.hi {
			reached = a
		}
		if a.writes && a.hi > written.hi {
			written = a
		}
	}
}

func (a access) String() string {
	operand := "src"
	if a.writes {
		operand = "dst"
	}
	return fmt.Sprintf("%s %v of %v", operand, a.extent, label(a.call))
}

// label names a call that has no number yet, for error messages.
func label(c *backend.Call) string {
	if c.Name == "" {
		return c.Kind.String()
	}
	return c.Kind.String() + " " + c.Name
}
