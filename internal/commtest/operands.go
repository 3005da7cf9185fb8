package commtest

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
)

// Operands checks which memory the operands of a call may share. If operands share memory in a way
// that NCCL defines, every rank gets the exact result, for all sizes, types and kinds of memory. If
// one rank's operands overlap in any other way, its call panics with a [comm.UsageError] that holds
// both address ranges and gets no number, and the calls of the other ranks fail with that cause. run
// runs f on n ranks.
func Operands(t *testing.T, n int, run func(t testing.TB, opts *comm.Options, f func(pg *comm.ProcessGroup) error)) {
	t.Run("in place", func(t *testing.T) {
		run(t, nil, func(pg *comm.ProcessGroup) error {
			for _, m := range memories(pg) {
				for _, dt := range operandTypes {
					for _, size := range operandSizes(dt, n) {
						for _, p := range inPlace {
							if err := p.check(t, pg, m, dt, size); err != nil {
								return fmt.Errorf("%v %s, %v, %d bytes, memory of the %s: %w", p.kind, p.how, dt, size*dt.Size(), m.name, err)
							}
						}
					}
				}
			}
			return nil
		})
	})
	for _, p := range rejected {
		t.Run(strings.ReplaceAll(fmt.Sprint(p.kind, " ", p.how), " ", "-"), func(t *testing.T) {
			for i, size := range operandSizes(device.Float32, n) {
				run(t, &comm.Options{Timeout: time.Hour, Log: slog.New(slog.DiscardHandler)}, func(pg *comm.ProcessGroup) error {
					if err := p.checkRejected(t, pg, size, i%2 == 1); err != nil {
						return fmt.Errorf("%d bytes: %w", size*device.Float32.Size(), err)
					}
					return nil
				})
			}
		})
	}
}

var operandTypes = []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16, device.Int32, device.Int64, device.Uint8}

// operandSizes returns numbers of elements that a rank gives. They are below and above the size that
// the host backend sends along with a call's header, and one is so large that the host backend
// divides it into segments. Each is divisible by n.
func operandSizes(dt device.DType, n int) (sizes []int) {
	for _, bytes := range []int{1 << 10, 16 << 10, 1 << 20} {
		blocks := bytes / dt.Size() / n
		if bytes <= 16<<10 || dt == device.Float32 {
			sizes = append(sizes, blocks*n)
		}
		if bytes == 16<<10 {
			sizes = append(sizes, (blocks-1)*n, (blocks+1)*n)
		}
	}
	return sizes
}

// memory is a kind of memory for operands.
type memory struct {
	name  string
	alloc func(size int) (device.Buffer, error)
	free  func(device.Buffer)
}

func memories(pg *comm.ProcessGroup) []memory {
	return []memory{
		{"group", pg.Alloc, func(device.Buffer) {}}, // the garbage collector frees the memory
		{"device", pg.Device().Alloc, pg.Device().Free},
	}
}

// placed is a call, and the places of its operands within one allocation.
type placed struct {
	kind   backend.Kind
	how    string
	uneven bool
	// at returns the indices of the first elements of dst and src.
	at func(o *operands) (dst, src int)
	// start makes the calls of a Group; it is nil for other kinds. overlap is the number of elements
	// that two operands share.
	start func(o *operands, g *comm.ProcessGroup, overlap int)
}

// sideBySide places src directly after dst.
func sideBySide(o *operands) (dst, src int) { return 0, o.lengthOf(o.rank, true) }

func atStart(*operands) (dst, src int) { return 0, 0 }

// selfOfDst places src at this rank's part of dst; selfOfSrc places dst at this rank's part of src.
func selfOfDst(o *operands) (dst, src int) { return 0, o.part(o.rank) }
func selfOfSrc(o *operands) (dst, src int) { return o.part(o.rank), 0 }

// nextOfDst places src at the next rank's part of dst; nextOfSrc places dst at the next rank's part of
// src.
func nextOfDst(o *operands) (dst, src int) { return 0, o.part((o.rank + 1) % o.n) }
func nextOfSrc(o *operands) (dst, src int) { return o.part((o.rank + 1) % o.n), 0 }

// besideOfDst places src one element after the start of this rank's part of dst; besideOfSrc places dst
// one element after the start of this rank's part of src.
func besideOfDst(o *operands) (dst, src int) { return 0, o.part(o.rank) + 1 }
func besideOfSrc(o *operands) (dst, src int) { return o.part(o.rank) + 1, 0 }

// dstLater places dst so that it begins one element after src; srcLater places src so that it begins one
// element after dst.
func dstLater(*operands) (dst, src int) { return 1, 0 }
func srcLater(*operands) (dst, src int) { return 0, 1 }

// lastOfDst places the start of src at the last element of dst.
func lastOfDst(o *operands) (dst, src int) { return 0, o.lengthOf(o.rank, true) - 1 }

// inPlace are the placements in which operands share memory, or are adjacent, and which are valid.
var inPlace = []placed{
	{kind: backend.AllReduce, how: "in place", at: atStart},
	{kind: backend.Broadcast, how: "in place", at: atStart},
	{kind: backend.Reduce, how: "in place", at: atStart},
	{kind: backend.AllGather, how: "in place", at: selfOfDst},
	{kind: backend.AllGather, how: "in place, uneven", uneven: true, at: selfOfDst},
	{kind: backend.ReduceScatter, how: "in place", at: selfOfSrc},
	{kind: backend.Gather, how: "in place", at: selfOfDst},
	{kind: backend.Scatter, how: "in place", at: selfOfSrc},
	{kind: backend.Reduce, how: "side by side", at: sideBySide},
	{kind: backend.AllGather, how: "side by side", at: sideBySide},
	{kind: backend.AllGather, how: "side by side, uneven", uneven: true, at: sideBySide},
	{kind: backend.ReduceScatter, how: "side by side", at: sideBySide},
	{kind: backend.Gather, how: "side by side", at: sideBySide},
	{kind: backend.Scatter, how: "side by side", at: sideBySide},
	{kind: backend.AllToAll, how: "side by side", at: sideBySide},
}

// rejected are forms of overlap that are errors.
var rejected = []placed{
	{kind: backend.AllToAll, how: "in place", at: atStart},
	{kind: backend.AllToAll, how: "src one element later", at: srcLater},
	{kind: backend.AllToAll, how: "dst one element later", at: dstLater},
	{kind: backend.AllToAll, how: "in one element", at: lastOfDst},
	{kind: backend.Reduce, how: "src one element later", at: srcLater},
	{kind: backend.Reduce, how: "dst one element later", at: dstLater},
	{kind: backend.Reduce, how: "in one element", at: lastOfDst},
	{kind: backend.AllGather, how: "from another part", at: nextOfDst},
	{kind: backend.AllGather, how: "one element beside", at: besideOfDst},
	{kind: backend.AllGather, how: "over the start of dst", at: dstLater},
	{kind: backend.AllGather, how: "uneven, from another part", uneven: true, at: nextOfDst},
	{kind: backend.AllGather, how: "uneven, one element beside", uneven: true, at: besideOfDst},
	{kind: backend.ReduceScatter, how: "to another part", at: nextOfSrc},
	{kind: backend.ReduceScatter, how: "one element beside", at: besideOfSrc},
	{kind: backend.ReduceScatter, how: "over the start of src", at: srcLater},
	{kind: backend.Gather, how: "from another part", at: nextOfDst},
	{kind: backend.Gather, how: "one element beside", at: besideOfDst},
	{kind: backend.Scatter, how: "to another part", at: nextOfSrc},
	{kind: backend.Scatter, how: "one element beside", at: besideOfSrc},
	{kind: backend.Group, how: "two all-reduces", start: func(o *operands, g *comm.ProcessGroup, overlap int) {
		g.AllReduce(o.view(0, o.c), comm.Sum)
		g.AllReduce(o.view(o.c-overlap, o.c), comm.Sum)
	}},
	{kind: backend.Group, how: "an all-gather in place and a broadcast", start: func(o *operands, g *comm.ProcessGroup, overlap int) {
		whole := o.n * o.c
		g.AllGather(o.view(0, whole), o.view(o.rank*o.c, o.c))
		g.Broadcast(o.view(whole-overlap, o.c), 0)
	}},
	{kind: backend.Group, how: "a reduce-scatter in place and an all-reduce", start: func(o *operands, g *comm.ProcessGroup, overlap int) {
		at := o.c - overlap
		g.ReduceScatter(o.view(at+o.rank*o.c, o.c), o.view(at, o.n*o.c), comm.Sum)
		g.AllReduce(o.view(0, o.c), comm.Sum)
	}},
	{kind: backend.Group, how: "a send and a receive", start: func(o *operands, g *comm.ProcessGroup, overlap int) {
		g.Recv(o.view(o.c-overlap, o.c), (o.rank+o.n-1)%o.n)
		g.Send(o.view(0, o.c), (o.rank+1)%o.n)
	}},
	{kind: backend.Group, how: "two receives", start: func(o *operands, g *comm.ProcessGroup, overlap int) {
		next, before := (o.rank+1)%o.n, (o.rank+o.n-1)%o.n
		for i := range 2 {
			g.Send(o.view(0, o.c), next) // both calls read the same memory, which is allowed
			g.Recv(o.view((1+i)*o.c-i*overlap, o.c), before)
		}
	}},
	{kind: backend.Group, how: "a call that overlaps by itself", start: func(o *operands, g *comm.ProcessGroup, overlap int) {
		g.AllToAll(o.view(0, o.n*o.c), o.view(o.n*o.c-overlap, o.n*o.c))
	}},
}

// operands is the memory of one rank for one call.
type operands struct {
	*placed
	n, rank, c int // elements of a block
	x          device.Tensor
	want       device.Tensor // the expected contents of x, in host memory
}

// newOperands allocates and fills the memory. size is the number of elements that a rank gives.
func (p *placed) newOperands(pg *comm.ProcessGroup, alloc func(int) (device.Buffer, error), dt device.DType, size int) (*operands, error) {
	o := &operands{placed: p, n: pg.Size(), rank: pg.Rank(), c: size}
	if p.kind == backend.ReduceScatter || p.kind == backend.Scatter || p.kind == backend.AllToAll {
		o.c = size / o.n
	}
	length := o.lengthOf(o.n-1, true) + o.lengthOf(o.n-1, false) + 1 // enough for the highest rank, which gives most
	if p.kind == backend.Group {
		length = 2 * o.n * o.c
	}
	buf, err := alloc(length * dt.Size())
	if err != nil {
		return nil, err
	}
	o.x, o.want = device.NewTensor(buf, dt, length), hostTensor(dt, length)
	fill(o.want, 0, length, func(i int) float64 { return given(o.rank, i) })
	return o, pg.Device().CopyIn(pg.Device().Compute(), o.x.Buf, o.want.Buf.Host())
}

func hostTensor(dt device.DType, n int) device.Tensor {
	return device.NewTensor(device.HostBuffer(make([]byte, n*dt.Size()), nil), dt, n)
}

// fill sets count elements of a tensor in host memory, from index at on, to f(0), f(1) and so on. The
// values repeat after period elements.
func fill(t device.Tensor, at, count int, f func(i int) float64) {
	for i := range min(count, period) {
		backendtest.Put(t, at+i, f(i))
	}
	mem := t.Range(at, at+count).Buf.Host()
	for done := period * t.DType.Size(); done < len(mem); done *= 2 {
		copy(mem[done:], mem[:done])
	}
}

// given returns element i of rank r's memory. The values are so small that sums are exact in every
// type. They repeat after period elements.
func given(r, i int) float64 {
	i %= period
	return float64(1 + (r*29+i*7+i/61)%60)
}

const period = 4093 // a prime, so that no two parts of an operand are equal

// count returns how many elements rank r gives to an AllGather.
func (o *operands) count(r int) int {
	if o.uneven {
		return o.c + r
	}
	return o.c
}

// part returns the index at which the part of rank r begins in the longer operand.
func (o *operands) part(r int) int {
	at := 0
	for s := range r {
		at += o.count(s)
	}
	return at
}

// lengthOf returns the number of elements of dst, or of src, on rank r.
func (o *operands) lengthOf(r int, dst bool) int {
	switch o.kind {
	case backend.AllGather, backend.Gather:
		if dst {
			return o.part(o.n)
		}
		return o.count(r)
	case backend.ReduceScatter, backend.Scatter:
		if dst {
			return o.c
		}
		return o.n * o.c
	case backend.AllToAll:
		return o.n * o.c
	}
	return o.c
}

// root returns the root of rooted calls: the rank whose operands overlap, because root has both.
func (o *operands) root() int { return o.n - 1 }

func (o *operands) view(at, count int) device.Tensor { return o.x.Range(at, at+count) }

// call makes the call, with dst and src at the given elements.
func (o *operands) call(pg *comm.ProcessGroup, dstAt, srcAt int) *comm.Work {
	dst, src := o.view(dstAt, o.lengthOf(o.rank, true)), o.view(srcAt, o.lengthOf(o.rank, false))
	switch o.kind {
	case backend.AllReduce:
		return pg.AllReduce(dst, comm.Sum)
	case backend.Broadcast:
		return pg.Broadcast(dst, o.root())
	case backend.Reduce:
		return pg.Reduce(dst, src, comm.Sum, o.root())
	case backend.AllGather:
		if o.uneven {
			counts := make([]int, o.n)
			for r := range counts {
				counts[r] = o.count(r)
			}
			return pg.AllGatherUneven(dst, src, counts)
		}
		return pg.AllGather(dst, src)
	case backend.ReduceScatter:
		return pg.ReduceScatter(dst, src, comm.Sum)
	case backend.Gather:
		return pg.Gather(dst, src, o.root())
	case backend.Scatter:
		return pg.Scatter(dst, src, o.root())
	}
	return pg.AllToAll(dst, src)
}

// value returns the expected element i of this rank's dst. srcAt holds the index of the first element
// of each rank's src.
func (o *operands) value(i int, srcAt []int) float64 {
	value := func(r, i int) float64 { return given(r, srcAt[r]+i) }
	sum := func(i int) (total float64) {
		for r := range o.n {
			total += value(r, i)
		}
		return total
	}
	switch o.kind {
	case backend.Broadcast:
		return value(o.root(), i)
	case backend.AllGather, backend.Gather:
		r := 0
		for ; i >= o.count(r); r++ {
			i -= o.count(r)
		}
		return value(r, i)
	case backend.ReduceScatter:
		return sum(o.rank*o.c + i)
	case backend.Scatter:
		return value(o.root(), o.rank*o.c+i)
	case backend.AllToAll:
		return value(i/o.c, o.rank*o.c+i%o.c)
	}
	return sum(i)
}

// wrong reads the memory after the call. It counts the wrong elements of dst, and the elements outside
// dst that have changed. srcAt holds the index of the first element of each rank's src.
func (o *operands) wrong(t testing.TB, pg *comm.ProcessGroup, dstAt int, srcAt []int) (wrong, changed int, err error) {
	length := o.lengthOf(o.rank, true)
	if o.rank != o.root() && (o.kind == backend.Reduce || o.kind == backend.Gather) {
		length = 0 // this rank has no dst
	}
	blocks := []int{0, length} // the bounds of the blocks, whose values repeat independently
	if length > 0 && (o.kind == backend.AllGather || o.kind == backend.Gather || o.kind == backend.AllToAll) {
		for r := 1; r < o.n; r++ {
			blocks = slices.Insert(blocks, r, o.part(r))
		}
	}
	for i, at := range blocks[1:] {
		start := blocks[i]
		fill(o.want, dstAt+start, at-start, func(i int) float64 { return o.value(start+i, srcAt) })
	}
	got := hostTensor(o.x.DType, o.x.Len())
	if err := pg.Device().CopyOut(t.Context(), pg.Device().Compute(), got.Buf.Host(), o.x.Buf); err != nil {
		return 0, 0, err
	}
	if bytes.Equal(got.Buf.Host(), o.want.Buf.Host()) {
		return 0, 0, nil
	}
	for i := range got.Len() {
		switch {
		case backendtest.Get(got, i) == backendtest.Get(o.want, i):
		case dstAt <= i && i < dstAt+length:
			wrong++
		default:
			changed++
		}
	}
	return wrong, changed, nil
}

// on returns the operands of rank r without their memory.
func (o *operands) on(r int) *operands {
	there := *o
	there.rank = r
	return &there
}

// check makes the call on all ranks and checks the result.
func (p *placed) check(t testing.TB, pg *comm.ProcessGroup, m memory, dt device.DType, size int) error {
	o, err := p.newOperands(pg, m.alloc, dt, size)
	if err != nil {
		return err
	}
	defer m.free(o.x.Buf)
	srcAt := make([]int, o.n)
	for r := range srcAt {
		_, srcAt[r] = p.at(o.on(r))
	}
	dst, _ := p.at(o)
	work := o.call(pg, dst, srcAt[o.rank])
	if err := errors.Join(work.Wait(t.Context()), work.Sync(t.Context())); err != nil {
		return err
	}
	wrong, changed, err := o.wrong(t, pg, dst, srcAt)
	if err == nil && wrong+changed > 0 {
		err = fmt.Errorf("%d elements of dst are wrong, %d beside it have changed", wrong, changed)
	}
	return err
}

// checkRejected makes the call with overlapping operands on the last rank and with separate operands on
// the other ranks. The other ranks call after the last rank if after is set, else before. It checks
// the error on each rank.
func (p *placed) checkRejected(t testing.TB, pg *comm.ProcessGroup, size int, after bool) error {
	o, err := p.newOperands(pg, pg.Alloc, device.Float32, size)
	if err != nil {
		return err
	}
	victim := o.n - 1
	overlaps := o.rank == victim
	var dst, src int
	start := func() *comm.Work {
		if p.kind == backend.Group {
			overlap := 0
			if overlaps {
				overlap = 1
			}
			return pg.Coalesce(func(g *comm.ProcessGroup) { p.start(o, g, overlap) })
		}
		if dst, src = sideBySide(o); overlaps {
			dst, src = p.at(o)
		}
		return o.call(pg, dst, src)
	}
	const ready, done = "operands/ready/", "operands/refused"
	if overlaps {
		for r := range victim {
			if _, err := pg.Store().Get(t.Context(), fmt.Sprint(ready, r)); err != nil {
				return err
			}
		}
	} else if after {
		if err := pg.Store().Set(t.Context(), fmt.Sprint(ready, o.rank), nil); err != nil {
			return err
		}
		if _, err := pg.Store().Get(t.Context(), done); err != nil {
			return err
		}
	}
	work, usage := attempt(start)
	if overlaps {
		err = pg.Store().Set(t.Context(), done, nil)
	} else if !after {
		err = pg.Store().Set(t.Context(), fmt.Sprint(ready, o.rank), nil)
	}
	if err != nil {
		return err
	}
	if !overlaps {
		if usage != nil {
			return fmt.Errorf("refused without an overlap: %w", usage)
		}
		err := work.Sync(t.Context())
		if err == nil { // the rank has only sent data, so the call succeeded
			err = pg.Barrier().Sync(t.Context())
		}
		return isCause(err, victim)
	}
	if usage == nil {
		err := work.Sync(t.Context())
		if err != nil || p.kind == backend.Group {
			return fmt.Errorf("taken, with the error %v", err)
		}
		srcAt := make([]int, o.n)
		for r := range victim {
			_, srcAt[r] = sideBySide(o.on(r))
		}
		srcAt[victim] = src
		wrong, changed, err := o.wrong(t, pg, dst, srcAt)
		return errors.Join(err, fmt.Errorf("taken without an error: %d of the %d elements of dst are wrong, %d beside it have changed",
			wrong, o.lengthOf(o.rank, true), changed))
	}
	ranges := []string{o.addresses(dst, o.lengthOf(o.rank, true)), o.addresses(src, o.lengthOf(o.rank, false))}
	if p.kind == backend.Group {
		ranges = []string{"dst [0x", "overlaps", "[0x"}
	}
	if usage.Rank != victim || slices.ContainsFunc(ranges, func(r string) bool { return !strings.Contains(usage.Msg, r) }) {
		return fmt.Errorf("refused by %q, want rank %d and %q", usage, victim, ranges)
	}
	err = pg.Barrier().Sync(t.Context())
	if call := new(comm.CallError); !errors.As(err, &call) || call.Call.Seq != 1 {
		return fmt.Errorf("the next call ended with %v, want it to be the first that is numbered", err)
	}
	return isCause(err, victim)
}

// addresses returns a range of the memory as error messages print it.
func (o *operands) addresses(at, count int) string {
	b := o.view(at, count).Buf
	return fmt.Sprintf("[%#x, %#x)", b.Addr(), b.Addr()+uintptr(b.Len()))
}

// attempt makes a call. If the call is rejected, attempt returns the error.
func attempt(start func() *comm.Work) (w *comm.Work, usage *comm.UsageError) {
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			if usage, ok = p.(*comm.UsageError); !ok {
				panic(p)
			}
		}
	}()
	return start(), nil
}

// isCause returns an error unless err says that the overlap on rank victim is the cause.
func isCause(err error, victim int) error {
	var usage *comm.UsageError
	if !errors.As(err, &usage) || usage.Rank != victim || !strings.Contains(err.Error(), "overlaps") {
		return fmt.Errorf("the call ended with %v, want rank %d's overlap", err, victim)
	}
	return nil
}
