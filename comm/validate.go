package comm

import (
	"fmt"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// form says which tensors a call of one kind needs, and how long they are. For some count c,
// dst has dstPart*c elements and src has srcPart*c elements.
type form struct {
	dst, src         need
	dstPart, srcPart int // the factors of c; 0 stands for the size of the group
}

// need says on which ranks the program must give a tensor to a call.
type need uint8

const (
	never need = iota
	always
	onRoot
)

var forms = [...]form{
	backend.AllReduce:     {always, always, 1, 1},
	backend.Broadcast:     {always, onRoot, 1, 1},
	backend.Reduce:        {onRoot, always, 1, 1},
	backend.AllGather:     {always, always, 0, 1},
	backend.ReduceScatter: {always, always, 1, 0},
	backend.Gather:        {onRoot, always, 0, 1},
	backend.Scatter:       {always, onRoot, 1, 0},
	backend.AllToAll:      {always, always, 1, 1},
	backend.Send:          {never, always, 1, 1},
	backend.Recv:          {always, never, 1, 1},
}

// reject breaks the group and panics with a [*failure.UsageError], because the call's arguments are
// invalid. A rejected call gets no sequence number and sends nothing, so the peers would wait for
// it until their deadline. Breaking the group gives them the cause at once.
func (pg *ProcessGroup) reject(c *backend.Call, format string, args ...any) {
	err := &failure.UsageError{Rank: pg.world.Rank, Call: c.Kind.String(), Msg: fmt.Sprintf(format, args...)}
	pg.reported.Store(true) // the panic reports the failure to the program
	c.Name = pg.opts.Name
	now := time.Now()
	pg.record.Begin(c, now.UnixNano()).Ended(now, true)
	pg.watchdog.failed(pg.group, err)
	pg.backend.Abort(err)
	panic(err)
}

// validate rejects a call whose arguments are invalid, whatever the other ranks call.
func (pg *ProcessGroup) validate(c *backend.Call) {
	if pg.batch != nil && pg.batch.isClosed {
		pg.reject(c, "the call was made after its Coalesce had ended")
	}
	if pg.batch != nil && pg.opts.Timeout != 0 {
		pg.reject(c, "CallOptions.Timeout is set within a Coalesce: set it on the Coalesce instead")
	}
	switch c.Kind {
	case backend.Barrier:
		return
	case backend.Group: // each call of the Coalesce was validated when it was made
		if pg.batch != nil {
			pg.reject(c, "Coalesce was called within another Coalesce")
		}
		pg.validateCoalesced(c)
		return
	}
	if c.Kind.Rooted() && (c.Root < 0 || c.Root >= pg.size) {
		pg.reject(c, "rank %d is out of range for a group of %d ranks", c.Root, pg.size)
	}
	if (c.Kind == backend.Send || c.Kind == backend.Recv) && c.Root == pg.rank {
		pg.reject(c, "the peer is this rank, %d: want another rank", pg.rank)
	}
	if c.Kind.Reduces() {
		pg.validateOp(c)
	}
	for _, t := range []device.Tensor{c.Dst, c.Src} {
		if t.Bytes() > 0 && t.Buf.Host() == nil && pg.backend.Name() == "host" {
			pg.reject(c, "%v is in device memory, but the group's backend needs host memory", t)
		}
	}
	f := forms[c.Kind]
	here := func(n need) bool { return n == always || n == onRoot && pg.rank == c.Root }
	switch {
	case here(f.dst) && c.Dst.IsZero():
		pg.reject(c, "dst is empty (the zero Tensor)")
	case here(f.src) && c.Src.IsZero():
		pg.reject(c, "src is empty (the zero Tensor)")
	case !here(f.dst) || !here(f.src):
		return
	case c.Dst.DType != c.Src.DType:
		pg.reject(c, "dst has type %v, but src has type %v", c.Dst.DType, c.Src.DType)
	case c.Counts != nil:
		pg.validateCounts(c)
	default:
		pg.validateLengths(c, f)
	}
	pg.validateOverlap(c)
}

// validateLengths rejects a call whose dst and src do not have matching lengths.
func (pg *ProcessGroup) validateLengths(c *backend.Call, f form) {
	parts := func(p int) int {
		if p == 0 {
			return pg.size
		}
		return p
	}
	if d, s := parts(f.dstPart), parts(f.srcPart); c.Dst.Len()*s != c.Src.Len()*d {
		pg.reject(c, "dst has %d elements and src %d: want a ratio of %d to %d", c.Dst.Len(), c.Src.Len(), d, s)
	}
	if c.Kind == backend.AllToAll && c.Src.Len()%pg.size != 0 {
		pg.reject(c, "%d elements cannot be divided evenly among %d ranks", c.Src.Len(), pg.size)
	}
}

// validateOp rejects a call whose reduction is unknown, or does not fit the Factor or the
// element type of the call.
func (pg *ProcessGroup) validateOp(c *backend.Call) {
	given := pg.factor(c) != nil
	switch {
	case c.Op > backend.PreMulSum:
		pg.reject(c, "unknown reduction %v", c.Op)
	case c.Op == backend.PreMulSum && !given:
		pg.reject(c, "%v needs a Factor", c.Op)
	case c.Op != backend.PreMulSum && given:
		pg.reject(c, "%v with a Factor: only %v takes one", c.Op, PreMulSum)
	case c.Op == backend.PreMulSum && !c.DType().IsFloat() && c.DType().Valid():
		pg.reject(c, "%v of type %v: want a floating-point type", c.Op, c.DType())
	}
}

// validateCounts rejects an AllGatherUneven whose counts do not fit its tensors.
func (pg *ProcessGroup) validateCounts(c *backend.Call) {
	if len(c.Counts) != pg.size {
		pg.reject(c, "%d counts for a group of %d ranks: want one count per rank", len(c.Counts), pg.size)
	}
	total := 0
	for r, n := range c.Counts {
		if n < 0 {
			pg.reject(c, "counts[%d] is %d: want 0 or more", r, n)
		}
		total += n
	}
	switch {
	case c.Src.Len() != c.Counts[pg.rank]:
		pg.reject(c, "src has %d elements, but counts[%d] is %d", c.Src.Len(), pg.rank, c.Counts[pg.rank])
	case c.Dst.Len() != total:
		pg.reject(c, "dst has %d elements, but the sum of counts is %d", c.Dst.Len(), total)
	}
}
