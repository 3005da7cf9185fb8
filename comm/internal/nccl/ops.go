//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/kernels"
)

// op is one operation of NCCL. A call consists of one or more, enqueued as a group.
type op = C.op

// types are NCCL's numbers of the element types.
var types = [...]C.int{
	device.Float32: 7, device.Float64: 8, device.Float16: 6, device.BFloat16: 9,
	device.Int32: 2, device.Int64: 4, device.Uint8: 1,
}

// reductions are NCCL's numbers of the reductions. Each PreMulSum creates a new one.
var reductions = [...]C.int{
	backend.Sum: 0, backend.Product: 1, backend.Max: 2, backend.Min: 3, backend.Avg: 4, backend.PreMulSum: C.pre_mul_sum,
}

// element returns the bits of v as an element of type dt.
func element(dt device.DType, v float64) C.uint64_t {
	switch dt {
	case device.Float32:
		return C.uint64_t(math.Float32bits(float32(v)))
	case device.Float16:
		return C.uint64_t(kernels.F16(float32(v)))
	case device.BFloat16:
		return C.uint64_t(kernels.BF16(float32(v)))
	}
	return C.uint64_t(math.Float64bits(v))
}

var functions = [...]string{
	C.op_all_reduce: "ncclAllReduce", C.op_broadcast: "ncclBroadcast", C.op_reduce: "ncclReduce", C.op_all_gather: "ncclAllGather",
	C.op_reduce_scatter: "ncclReduceScatter", C.op_send: "ncclSend", C.op_recv: "ncclRecv",
}

// callName returns the name of operations in errors.
func callName(ops []op) string {
	if len(ops) == 1 {
		return functions[ops[0].kind]
	}
	return fmt.Sprintf("ncclGroup of %d", len(ops))
}

// opBuilder turns calls into operations of NCCL.
type opBuilder struct {
	rank, size int
	pair       bool          // the communicator has two ranks, for Send or Recv with one peer
	barrierMem device.Tensor // memory for Barrier's all-reduce
	ops        []op
}

// add appends the operations of a call, except operations without elements, which NCCL would skip.
func (l *opBuilder) add(c *backend.Call) {
	part := func(t device.Tensor, i, of int) device.Tensor {
		n := t.Len() / of
		return t.Range(i*n, (i+1)*n)
	}
	switch c.Kind {
	case backend.AllReduce:
		o := reducing(C.op_all_reduce, c)
		o.alone = 1
		l.put(o, c.Src, c.Dst, c.Src)
	case backend.Broadcast:
		l.put(op{kind: C.op_broadcast, peer: C.int(c.Root)}, c.Src, c.Dst, c.Dst)
	case backend.Reduce:
		o := reducing(C.op_reduce, c)
		o.peer = C.int(c.Root)
		l.put(o, c.Src, c.Dst, c.Src)
	case backend.AllGather:
		if c.Counts == nil {
			l.put(op{kind: C.op_all_gather}, c.Src, c.Dst, c.Src)
			return
		}
		// One broadcast for each rank's part: broadcasts need only connections that every
		// communicator has.
		at := 0
		for r, n := range c.Counts {
			dst := c.Dst.Range(at, at+n)
			l.put(op{kind: C.op_broadcast, peer: C.int(r)}, c.Src, dst, dst)
			at += n
		}
	case backend.ReduceScatter:
		l.put(reducing(C.op_reduce_scatter, c), c.Src, c.Dst, c.Dst)
	case backend.Gather:
		l.send(c.Src, c.Root)
		if l.rank == c.Root {
			for r := range l.size {
				l.recv(part(c.Dst, r, l.size), r)
			}
		}
	case backend.Scatter:
		if l.rank == c.Root {
			for r := range l.size {
				l.send(part(c.Src, r, l.size), r)
			}
		}
		l.recv(c.Dst, c.Root)
	case backend.AllToAll:
		for r := range l.size {
			l.send(part(c.Src, r, l.size), r)
			l.recv(part(c.Dst, r, l.size), r)
		}
	case backend.Barrier:
		l.put(op{kind: C.op_all_reduce, reduce: reductions[backend.Sum], alone: 1}, l.barrierMem, l.barrierMem, l.barrierMem)
	case backend.Send:
		l.send(c.Src, c.Root)
	case backend.Recv:
		l.recv(c.Dst, c.Root)
	case backend.Group:
		for _, m := range c.Calls {
			l.add(m)
		}
		for i := range l.ops {
			l.ops[i].alone = 0
		}
	default:
		panic(fmt.Errorf("nccl: unknown call %v", c))
	}
}

// reducing returns an operation of the given kind with the reduction of c.
func reducing(kind C.int, c *backend.Call) op {
	o := op{kind: kind, reduce: reductions[c.Op]}
	if c.Op == backend.PreMulSum {
		o.factor = element(c.DType(), c.Factor)
	}
	return o
}

func (l *opBuilder) send(src device.Tensor, to int) {
	l.put(op{kind: C.op_send, peer: l.peer(to)}, src, device.Tensor{}, src)
}

func (l *opBuilder) recv(dst device.Tensor, from int) {
	l.put(op{kind: C.op_recv, peer: l.peer(from)}, device.Tensor{}, dst, dst)
}

// peer returns the number of a rank in the communicator.
func (l *opBuilder) peer(rank int) C.int {
	if l.pair {
		return C.int(1 - l.rank)
	}
	return C.int(rank)
}

// put appends an operation on as many elements as the tensor counted has. src or dst may be absent if
// NCCL does not use it.
func (l *opBuilder) put(o op, src, dst, counted device.Tensor) {
	if counted.Len() == 0 {
		return
	}
	o.src, o.dst = C.uintptr_t(src.Buf.Addr()), C.uintptr_t(dst.Buf.Addr())
	o.count, o._type = C.size_t(counted.Len()), types[counted.DType]
	l.ops = append(l.ops, o)
}
