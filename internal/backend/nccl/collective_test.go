//go:build cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
	"github.com/goddp/goddp/internal/coordinator"
)

var dtypes = []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16, device.Int32, device.Int64, device.Uint8}

func hostTensor(dt device.DType, n int) device.Tensor {
	return device.NewTensor(device.HostBuffer(make([]byte, n*dt.Size()), nil), dt, n)
}

// element returns element i of rank r. The values are small, so that sums and products of a few are
// exact in every type. Signed types also have negative elements.
func element(dt device.DType, r, i int) float64 {
	v := float64(1 + (r*7+i*3+i/5)%3)
	if dt != device.Uint8 && i%4 == 1 {
		return -v
	}
	return v
}

// factor returns the factor of rank r in a PreMulSum.
func factor(r int) float64 { return []float64{0.5, -2, 0, 4}[r%4] }

// combined returns the reduction of element i of n ranks.
func combined(dt device.DType, op backend.ReduceOp, n, i int) float64 {
	if op == backend.PreMulSum {
		acc := 0.0
		for r := range n {
			acc += factor(r) * element(dt, r, i)
		}
		return acc
	}
	acc := element(dt, 0, i)
	for r := 1; r < n; r++ {
		v := element(dt, r, i)
		switch op {
		case backend.Sum, backend.Avg:
			acc += v
		case backend.Min:
			acc = min(acc, v)
		case backend.Max:
			acc = max(acc, v)
		case backend.Product:
			acc *= v
		}
	}
	if op == backend.Avg {
		acc /= float64(n)
		if !dt.IsFloat() {
			acc = math.Trunc(acc)
		}
	}
	return acc
}

// tolerance returns the allowed error of an average: NCCL rounds 1/n to the type before it sums.
func tolerance(dt device.DType, op backend.ReduceOp, n int) float64 {
	if op != backend.Avg || n&(n-1) == 0 {
		return 0
	}
	return map[device.DType]float64{device.Float32: 1e-6, device.Float64: 1e-15, device.Float16: 4e-3, device.BFloat16: 3e-2}[dt]
}

// trial is one collective, as all ranks call it.
type trial struct {
	kind    backend.Kind
	op      backend.ReduceOp
	dt      device.DType
	c, root int
	inPlace bool
}

func (x trial) String() string {
	return fmt.Sprintf("%v %v %v, %d elements, root %d, in place %v", x.kind, x.op, x.dt, x.c, x.root, x.inPlace)
}

// run runs the trial and checks this rank's result.
func (x trial) run(m *member) error {
	n, r := m.size, m.rank
	call := &backend.Call{Kind: x.kind, Op: x.op, Factor: factor(r), Root: x.root}
	src, dst := 0, 0 // number of elements; 0 if the tensor is absent
	var want func(i int) float64
	self := func(rank int) func(int) float64 { return func(i int) float64 { return element(x.dt, rank, i) } }
	onRoot := func(v int) int {
		if r == x.root {
			return v
		}
		return 0
	}
	switch x.kind {
	case backend.AllReduce:
		src, dst, want = x.c, x.c, func(i int) float64 { return combined(x.dt, x.op, n, i) }
	case backend.Broadcast:
		src, dst, want = onRoot(x.c), x.c, self(x.root)
	case backend.Reduce:
		src, dst, want = x.c, onRoot(x.c), func(i int) float64 { return combined(x.dt, x.op, n, i) }
	case backend.AllGather:
		src, dst, want = x.c, n*x.c, func(i int) float64 { return element(x.dt, i/x.c, i%x.c) }
	case backend.ReduceScatter:
		src, dst, want = n*x.c, x.c, func(i int) float64 { return combined(x.dt, x.op, n, r*x.c+i) }
	case backend.Gather:
		src, dst, want = x.c, onRoot(n*x.c), func(i int) float64 { return element(x.dt, i/x.c, i%x.c) }
	case backend.Scatter:
		src, dst, want = onRoot(n*x.c), x.c, func(i int) float64 { return element(x.dt, x.root, r*x.c+i) }
	case backend.AllToAll:
		src, dst, want = n*x.c, n*x.c, func(i int) float64 { return element(x.dt, i/x.c, r*x.c+i%x.c) }
	}
	fill := func(n int) device.Tensor {
		h := hostTensor(x.dt, n)
		for i := range n {
			backendtest.Put(h, i, element(x.dt, r, i))
		}
		return h
	}
	there := func(v int) bool { return v > 0 || x.c == 0 }
	var err error
	if there(src) && !(x.c == 0 && onRoot(1) == 0 && (x.kind == backend.Broadcast || x.kind == backend.Scatter)) {
		if call.Src, err = m.upload(fill(src)); err != nil {
			return err
		}
	}
	if there(dst) {
		switch {
		case x.inPlace && src == dst:
			call.Dst = call.Src
		case x.inPlace && dst == n*src: // Src is this rank's part of Dst
			h, self := hostTensor(x.dt, dst), r*src
			copy(h.Range(self, self+src).Buf.Host(), fill(src).Buf.Host())
			if call.Dst, err = m.upload(h); err != nil {
				return err
			}
			call.Src = call.Dst.Range(self, self+src)
		case x.inPlace && src == n*dst:
			call.Dst = call.Src.Range(r*dst, (r+1)*dst)
		default:
			if call.Dst, err = m.upload(hostTensor(x.dt, dst)); err != nil {
				return err
			}
		}
	}
	task, err := m.start(call)
	if err != nil {
		return err
	}
	if err := task.Join(context.Background(), m.dev.Compute()); err != nil {
		return err
	}
	if dst == 0 {
		return task.Sync(context.Background())
	}
	got, err := m.download(call.Dst)
	if err != nil {
		return err
	}
	for i := range dst {
		if v := backendtest.Get(got, i); math.Abs(v-want(i)) > tolerance(x.dt, x.op, n)*3 {
			return fmt.Errorf("element %d of %d is %v, want %v", i, dst, v, want(i))
		}
	}
	return task.Sync(context.Background())
}

// trials returns trials of all kinds, types and reductions, and of several sizes.
func trials(n int) []trial {
	var out []trial
	for _, k := range []backend.Kind{backend.AllReduce, backend.Broadcast, backend.Reduce, backend.AllGather, backend.ReduceScatter,
		backend.Gather, backend.Scatter, backend.AllToAll} {
		for i, dt := range dtypes {
			ops := []backend.ReduceOp{backend.Sum}
			if k.Reduces() {
				ops = append(ops, backend.Avg, backend.Min, backend.Max, backend.Product)
				if dt.IsFloat() {
					ops = append(ops, backend.PreMulSum)
				}
			}
			for j, op := range ops {
				root := (i + j) % n
				out = append(out, trial{k, op, dt, 7, root, false})
				if j == 0 {
					out = append(out, trial{k, op, dt, 33333, root, k != backend.AllToAll})
				}
			}
		}
		out = append(out, trial{k, backend.Sum, device.Float32, 0, 0, false}, trial{k, backend.Sum, device.Float64, 1, n - 1, false})
	}
	return out
}

// collectives runs every trial, an uneven AllGather, reductions with different factors, and a
// Barrier.
func collectives(m *member) error {
	for _, x := range trials(m.size) {
		if err := x.run(m); err != nil {
			return fmt.Errorf("%v: %w", x, err)
		}
	}
	if err := errors.Join(uneven(m), factors(m)); err != nil {
		return err
	}
	return m.call(&backend.Call{Kind: backend.Barrier})
}

// uneven gathers r² elements of each rank r; rank 0 has none.
func uneven(m *member) error {
	counts, total := make([]int, m.size), 0
	for r := range counts {
		counts[r] = r * r
		total += r * r
	}
	h := hostTensor(device.Int32, counts[m.rank])
	for i := range h.Len() {
		backendtest.Put(h, i, element(device.Int32, m.rank, i))
	}
	src, err := m.upload(h)
	if err != nil {
		return err
	}
	dst, err := m.upload(hostTensor(device.Int32, total))
	if err != nil {
		return err
	}
	if err := m.call(&backend.Call{Kind: backend.AllGather, Src: src, Dst: dst, Counts: counts}); err != nil {
		return err
	}
	got, err := m.download(dst)
	if err != nil {
		return err
	}
	at := 0
	for r, n := range counts {
		for i := range n {
			if v, want := backendtest.Get(got, at), element(device.Int32, r, i); v != want {
				return fmt.Errorf("uneven AllGather: element %d of rank %d is %v, want %v", i, r, v, want)
			}
			at++
		}
	}
	return nil
}

// factors runs a Group of reductions whose factors differ by tensor and by rank.
func factors(m *member) error {
	const count = 1000
	group := &backend.Call{Kind: backend.Group}
	for i, dt := range []device.DType{device.Float32, device.BFloat16, device.Float32} {
		h := hostTensor(dt, count)
		for j := range count {
			backendtest.Put(h, j, 1)
		}
		t, err := m.upload(h)
		if err != nil {
			return err
		}
		c := &backend.Call{Kind: backend.AllReduce, Op: backend.PreMulSum, Factor: float64(i*m.size + m.rank), Dst: t, Src: t}
		group.Calls = append(group.Calls, c)
	}
	task, err := m.start(group)
	if err != nil {
		return err
	}
	if err := task.Join(context.Background(), m.dev.Compute()); err != nil {
		return err
	}
	for i, c := range group.Calls {
		got, err := m.download(c.Dst)
		if err != nil {
			return err
		}
		want := float64(m.size*i*m.size + m.size*(m.size-1)/2)
		for j := range count {
			if v := backendtest.Get(got, j); v != want {
				return fmt.Errorf("factors: element %d of tensor %d is %v, want %v", j, i, v, want)
			}
		}
	}
	return nil
}

// exchange sends to every peer and then receives from every peer, more than fits into any buffer.
// If inGroup is true, the calls are a Group.
func exchange(m *member, inGroup bool) error {
	const count = 1 << 20
	var tasks []backend.Task
	results := map[int]device.Tensor{}
	group := &backend.Call{Kind: backend.Group}
	for _, kind := range []backend.Kind{backend.Send, backend.Recv} {
		for peer := range m.size {
			if peer == m.rank {
				continue
			}
			h := hostTensor(device.Int32, count)
			if kind == backend.Send {
				for i := range count {
					backendtest.Put(h, i, float64(m.rank*1000+peer+i))
				}
			}
			t, err := m.upload(h)
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
			task, err := m.start(c)
			if err != nil {
				return err
			}
			tasks = append(tasks, task)
		}
	}
	if inGroup {
		task, err := m.start(group)
		if err != nil {
			return err
		}
		tasks = append(tasks, task)
	}
	for _, task := range tasks {
		if err := task.Join(context.Background(), m.dev.Compute()); err != nil {
			return err
		}
	}
	for peer, t := range results {
		got, err := m.download(t)
		if err != nil {
			return err
		}
		for i := range count {
			if v, want := backendtest.Get(got, i), float64(peer*1000+m.rank+i); v != want {
				return fmt.Errorf("element %d from rank %d is %v, want %v", i, peer, v, want)
			}
		}
	}
	return nil
}

// split splits the group into even and odd ranks, the odd ones in reverse order.
func split(m *member, control *coordinator.Group) error {
	color := m.rank % 2
	var members []int
	for r := range m.size {
		if r%2 == color {
			members = append(members, r)
		}
	}
	if color == 1 {
		for i, j := 0, len(members)-1; i < j; i, j = i+1, j-1 {
			members[i], members[j] = members[j], members[i]
		}
	}
	half, _, err := control.Make(context.Background(), fmt.Sprint("color ", color), members, nil)
	if err != nil {
		return err
	}
	c := backend.Config{Size: len(members), Control: half, Device: m.dev, Timeout: soon}
	for i, r := range members {
		if r == m.rank {
			c.Rank = i
		}
	}
	b, err := m.Split(context.Background(), c, members)
	if err != nil {
		return err
	}
	sub := &member{Backend: b, rank: c.Rank, size: c.Size, dev: m.dev, seq: new(uint64)}
	err = collectives(sub)
	return errors.Join(err, closeAll([]*member{sub}, soon))
}

func TestCollectives(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			control(t)
			if err := each(world(t, n), collectives); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSendThenRecvDoesNotDeadlock(t *testing.T) {
	control(t)
	members := world(t, 3)
	for range 2 { // the second time, the communicators exist
		if err := each(members, func(m *member) error { return exchange(m, false) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := each(members, func(m *member) error { return exchange(m, true) }); err != nil {
		t.Error(err)
	}
}
