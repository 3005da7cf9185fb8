package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
)

// Types are the element types.
var Types = []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16, device.Int32, device.Int64, device.Uint8}

// Kinds are the collectives that move data.
var Kinds = []backend.Kind{backend.AllReduce, backend.Broadcast, backend.Reduce, backend.AllGather, backend.ReduceScatter,
	backend.Gather, backend.Scatter, backend.AllToAll}

// Ops returns the reductions of a type.
func Ops(dt device.DType) []backend.ReduceOp {
	ops := []backend.ReduceOp{backend.Sum, backend.Avg, backend.Min, backend.Max, backend.Product}
	if dt.IsFloat() {
		ops = append(ops, backend.PreMulSum)
	}
	return ops
}

// Element returns element i of rank r. The values are small, so that any sum and product of five is
// exact in every type. Signed types also have negative elements.
func Element(dt device.DType, r, i int) float64 {
	v := float64(1 + (r*7+i*3+i/5)%3)
	if dt != device.Uint8 && i%4 == 1 {
		return -v
	}
	return v
}

// factor returns the factor of rank r in a PreMulSum.
func factor(r int) float64 { return []float64{0.5, -2, 0, 4}[r%4] }

// Reduced returns the reduction of element i of n ranks, rounded as package host documents it.
func Reduced(dt device.DType, op backend.ReduceOp, n, i int) float64 {
	scale := func(int) float64 { return 1 }
	if op == backend.PreMulSum {
		scale = factor
	}
	acc := scale(0) * Element(dt, 0, i)
	for r := 1; r < n; r++ {
		switch v := scale(r) * Element(dt, r, i); op {
		case backend.Min:
			acc = min(acc, v)
		case backend.Max:
			acc = max(acc, v)
		case backend.Product:
			acc *= v
		default:
			acc += v
		}
	}
	switch {
	case op != backend.Avg:
		return acc
	case !dt.IsFloat():
		return math.Trunc(acc / float64(n))
	case dt == device.Float64:
		return acc * (1 / float64(n))
	}
	rounded := HostTensor(dt, 1)
	Put(rounded, 0, float64(float32(acc)*(1/float32(n))))
	return Get(rounded, 0)
}

// Trial is one collective, as all ranks call it.
type Trial struct {
	Kind    backend.Kind
	Op      backend.ReduceOp
	DType   device.DType
	Count   int // the count c in the comment of the Kind
	Root    int
	InPlace bool // Src and Dst share memory, if the Kind allows that
	Private bool // the tensors are in Go's memory instead of memory from Alloc
}

func (x Trial) String() string {
	return fmt.Sprintf("%v %v %v, %d elements, root %d, in place %v, private %v", x.Kind, x.Op, x.DType, x.Count, x.Root, x.InPlace, x.Private)
}

// Run runs the trial and checks this rank's result.
func (x Trial) Run(m *Rank) error {
	if x.Kind == backend.Barrier {
		return m.Run(&backend.Call{Kind: backend.Barrier})
	}
	if err := x.run(m); err != nil {
		return fmt.Errorf("%v: %w", x, err)
	}
	return nil
}

func (x Trial) run(m *Rank) error {
	n, r := m.Size, m.Rank
	call := &backend.Call{Kind: x.Kind, Op: x.Op, Factor: factor(r), Root: x.Root}
	src, dst := 0, 0 // number of elements; 0 if the tensor is absent
	var want func(i int) float64
	elements := func(rank int) func(int) float64 {
		return func(i int) float64 { return Element(x.DType, rank, i) }
	}
	onRoot := func(v int) int {
		if r == x.Root {
			return v
		}
		return 0
	}
	switch c := x.Count; x.Kind {
	case backend.AllReduce:
		src, dst, want = c, c, func(i int) float64 { return Reduced(x.DType, x.Op, n, i) }
	case backend.Broadcast:
		src, dst, want = onRoot(c), c, elements(x.Root)
	case backend.Reduce:
		src, dst, want = c, onRoot(c), func(i int) float64 { return Reduced(x.DType, x.Op, n, i) }
	case backend.AllGather:
		src, dst, want = c, n*c, func(i int) float64 { return Element(x.DType, i/c, i%c) }
	case backend.ReduceScatter:
		src, dst, want = n*c, c, func(i int) float64 { return Reduced(x.DType, x.Op, n, r*c+i) }
	case backend.Gather:
		src, dst, want = c, onRoot(n*c), func(i int) float64 { return Element(x.DType, i/c, i%c) }
	case backend.Scatter:
		src, dst, want = onRoot(n*c), c, func(i int) float64 { return Element(x.DType, x.Root, r*c+i) }
	case backend.AllToAll:
		src, dst, want = n*c, n*c, func(i int) float64 { return Element(x.DType, i/c, r*c+i%c) }
	}
	upload := m.Upload
	if x.Private {
		upload = func(h device.Tensor) (device.Tensor, error) { return h, nil }
	}
	fill := func(n int) device.Tensor {
		h := HostTensor(x.DType, n)
		for i := range n {
			Put(h, i, Element(x.DType, r, i))
		}
		return h
	}
	const guard = 16 // elements beside Dst
	var whole device.Tensor
	isPresent := func(v int) bool { return v > 0 || x.Count == 0 }
	hasSrc := r == x.Root || x.Kind != backend.Broadcast && x.Kind != backend.Scatter
	var err error
	if isPresent(src) && hasSrc {
		if call.Src, err = upload(fill(src)); err != nil {
			return err
		}
	}
	inPlace := x.InPlace && x.Kind != backend.AllToAll && !call.Src.IsZero()
	if isPresent(dst) {
		switch {
		case inPlace && src == dst:
			call.Dst = call.Src
		case inPlace && dst == n*src: // Src is this rank's part of Dst
			h, at := HostTensor(x.DType, dst), r*src
			copy(h.Range(at, at+src).Buf.Host(), fill(src).Buf.Host())
			if call.Dst, err = upload(h); err != nil {
				return err
			}
			call.Src = call.Dst.Range(at, at+src)
		case inPlace && src == n*dst:
			call.Dst = call.Src.Range(r*dst, (r+1)*dst)
		default:
			if whole, err = upload(HostTensor(x.DType, dst+guard)); err != nil {
				return err
			}
			call.Dst = whole.Range(0, dst)
		}
	}
	task, err := m.Enqueue(call)
	if err != nil {
		return err
	}
	if err := task.Join(context.Background(), m.Device.Compute()); err != nil {
		return err
	}
	if dst == 0 {
		return task.Sync(context.Background())
	}
	got, err := m.Download(call.Dst)
	if err != nil {
		return err
	}
	tolerance := 0.0
	if x.Op == backend.Avg && n&(n-1) != 0 {
		tolerance = m.AvgTolerance[x.DType]
	}
	for i := range dst {
		if v := Get(got, i); !(math.Abs(v-want(i)) <= tolerance) {
			return fmt.Errorf("element %d of %d is %v, want %v", i, dst, v, want(i))
		}
	}
	if !whole.IsZero() {
		beside, err := m.Download(whole.Range(dst, dst+guard))
		if err != nil {
			return err
		}
		for i := range guard {
			if v := Get(beside, i); v != 0 {
				return fmt.Errorf("element %d behind Dst has become %v", i, v)
			}
		}
	}
	return task.Sync(context.Background())
}

// Collectives runs trials of all kinds, types and reductions, an uneven AllGather, a Group of
// reductions with different factors, and a Barrier.
func Collectives(m *Rank) error {
	large := 33_333
	if testkit.Race {
		large = 5000
	} else if !testkit.IsLong() {
		large = 9000
	}
	run := func(x Trial) error { return x.Run(m) }
	for _, k := range Kinds {
		for i, dt := range Types {
			ops := []backend.ReduceOp{backend.Sum}
			if k.Reduces() {
				ops = Ops(dt)
			}
			for j, op := range ops {
				root := (i + j) % m.Size
				if err := run(Trial{Kind: k, Op: op, DType: dt, Count: 7, Root: root}); err != nil {
					return err
				}
				if j > 0 {
					continue
				}
				if err := run(Trial{Kind: k, Op: op, DType: dt, Count: large, Root: root, InPlace: true}); err != nil {
					return err
				}
			}
		}
		err := errors.Join(run(Trial{Kind: k, DType: device.Float32}), run(Trial{Kind: k, DType: device.Float64, Count: 1, Root: m.Size - 1}))
		if err != nil {
			return err
		}
	}
	counts := make([]int, m.Size) // rank 0 has no elements
	for r := range counts {
		counts[r] = r * r
	}
	if err := errors.Join(Uneven(m, counts, false), Factors(m)); err != nil {
		return err
	}
	return m.Run(&backend.Call{Kind: backend.Barrier})
}

// Uneven runs an AllGather of counts[r] elements of each rank r: in Go's memory if private is true, else in place.
func Uneven(m *Rank, counts []int, private bool) error {
	total, mine := 0, 0
	for r, n := range counts {
		if r == m.Rank {
			mine = total
		}
		total += n
	}
	dst := HostTensor(device.Int32, total)
	src := HostTensor(device.Int32, counts[m.Rank])
	if !private {
		src = dst.Range(mine, mine+counts[m.Rank])
	}
	for i := range src.Len() {
		Put(src, i, Element(device.Int32, m.Rank, i))
	}
	if !private {
		var err error
		if dst, err = m.Upload(dst); err != nil {
			return err
		}
		src = dst.Range(mine, mine+counts[m.Rank])
	}
	if err := m.Run(&backend.Call{Kind: backend.AllGather, Src: src, Dst: dst, Counts: counts}); err != nil {
		return err
	}
	got, err := m.Download(dst)
	if err != nil {
		return err
	}
	at := 0
	for r, n := range counts {
		for i := range n {
			if v, want := Get(got, at), Element(device.Int32, r, i); v != want {
				return fmt.Errorf("uneven AllGather: element %d of rank %d is %v, want %v", i, r, v, want)
			}
			at++
		}
	}
	return nil
}

// Factors runs a Group of reductions whose factors differ by tensor and by rank.
func Factors(m *Rank) error {
	const count = 1000
	group := &backend.Call{Kind: backend.Group}
	for i, dt := range []device.DType{device.Float32, device.BFloat16, device.Float32} {
		h := HostTensor(dt, count)
		for j := range count {
			Put(h, j, 1)
		}
		t, err := m.Upload(h)
		if err != nil {
			return err
		}
		c := &backend.Call{Kind: backend.AllReduce, Op: backend.PreMulSum, Factor: float64(i*m.Size + m.Rank), Dst: t, Src: t}
		group.Calls = append(group.Calls, c)
	}
	task, err := m.Enqueue(group)
	if err != nil {
		return err
	}
	if err := task.Join(context.Background(), m.Device.Compute()); err != nil {
		return err
	}
	for i, c := range group.Calls {
		got, err := m.Download(c.Dst)
		if err != nil {
			return err
		}
		want := float64(m.Size*i*m.Size + m.Size*(m.Size-1)/2)
		for j := range count {
			if v := Get(got, j); v != want {
				return fmt.Errorf("factors: element %d of tensor %d is %v, want %v", j, i, v, want)
			}
		}
	}
	return nil
}

// Exchange sends to every peer and then receives from every peer, more than fits into any buffer.
// If inGroup is true, the calls are a Group.
func Exchange(m *Rank, inGroup bool) error {
	const count = 1 << 20
	var tasks []backend.Task
	results := map[int]device.Tensor{}
	group := &backend.Call{Kind: backend.Group}
	for _, kind := range []backend.Kind{backend.Send, backend.Recv} {
		for peer := range m.Size {
			if peer == m.Rank {
				continue
			}
			h := HostTensor(device.Int32, count)
			if kind == backend.Send {
				for i, x := 0, device.Elements[int32](h); i < count; i++ {
					x[i] = int32(m.Rank*1000 + peer + i)
				}
			}
			t, err := m.Upload(h)
			if err != nil {
				return err
			}
			c := &backend.Call{Kind: kind, Src: t, Root: peer}
			if kind == backend.Recv {
				c.Src, c.Dst = device.Tensor{}, t
				results[peer] = t
			}
			if inGroup {
				group.Calls = append(group.Calls, c)
				continue
			}
			task, err := m.Enqueue(c)
			if err != nil {
				return err
			}
			tasks = append(tasks, task)
		}
	}
	if inGroup {
		task, err := m.Enqueue(group)
		if err != nil {
			return err
		}
		tasks = append(tasks, task)
	}
	for _, task := range tasks {
		if err := task.Join(context.Background(), m.Device.Compute()); err != nil {
			return err
		}
	}
	for peer, t := range results {
		got, err := m.Download(t)
		if err != nil {
			return err
		}
		for i, v := range device.Elements[int32](got) {
			if want := int32(peer*1000 + m.Rank + i); v != want {
				return fmt.Errorf("element %d from rank %d is %v, want %v", i, peer, v, want)
			}
		}
	}
	return nil
}
