package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// rejection makes a call. It returns the error with which the call panics if the call is
// rejected, else nil.
func rejection(call func()) (usage *failure.UsageError) {
	defer func() { usage, _ = recover().(*failure.UsageError) }()
	call()
	return nil
}

// Operands of a call may share memory only as NCCL defines it, and calls of one Coalesce only memory that they read. Rank 1
// of 2 makes each call on one memory, in blocks of 4 elements. If the call is rejected, it gets no number, and the calls
// of the other rank fail with that cause.
func TestOperandsThatShareMemory(t *testing.T) {
	x := vec(make([]float32, 24)...)
	at := func(from, n int) device.Tensor { return x.Range(from, from+n) }
	one := func(call func(pg *comm.ProcessGroup, dst, src device.Tensor)) func(pg *comm.ProcessGroup, ops ...device.Tensor) {
		return func(pg *comm.ProcessGroup, ops ...device.Tensor) { call(pg, ops[0], ops[1]) }
	}
	reduce := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.Reduce(dst, src, comm.Sum, 1) })
	allGather := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.AllGather(dst, src) })
	uneven := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.AllGatherUneven(dst, src, []int{3, 5}) })
	gather := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.Gather(dst, src, 1) })
	reduceScatter := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.ReduceScatter(dst, src, comm.Sum) })
	scatter := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.Scatter(dst, src, 1) })
	allToAll := one(func(pg *comm.ProcessGroup, dst, src device.Tensor) { pg.AllToAll(dst, src) })
	group := func(calls func(g *comm.ProcessGroup, ops []device.Tensor)) func(pg *comm.ProcessGroup, ops ...device.Tensor) {
		return func(pg *comm.ProcessGroup, ops ...device.Tensor) {
			pg.Coalesce(func(g *comm.ProcessGroup) { calls(g, ops) })
		}
	}
	twoSums := group(func(g *comm.ProcessGroup, ops []device.Tensor) {
		g.AllReduce(ops[0], comm.Sum)
		g.AllReduce(ops[1], comm.Sum)
	})
	gatherAndBroadcast := group(func(g *comm.ProcessGroup, ops []device.Tensor) { g.AllGather(ops[0], ops[1]); g.Broadcast(ops[2], 0) })
	scatterAndSum := group(func(g *comm.ProcessGroup, ops []device.Tensor) {
		g.ReduceScatter(ops[0], ops[1], comm.Sum)
		g.AllReduce(ops[2], comm.Sum)
	})
	sendAndReceive := group(func(g *comm.ProcessGroup, ops []device.Tensor) { g.Send(ops[0], 0); g.Recv(ops[1], 0) })
	twoSends := group(func(g *comm.ProcessGroup, ops []device.Tensor) { g.Send(ops[0], 0); g.Send(ops[1], 0) })
	allToAllInGroup := group(func(g *comm.ProcessGroup, ops []device.Tensor) { g.AllToAll(ops[0], ops[1]) })
	for _, c := range []struct {
		name   string
		call   func(pg *comm.ProcessGroup, ops ...device.Tensor)
		ops    []device.Tensor
		reject bool
	}{
		{"Reduce in place", reduce, []device.Tensor{at(0, 4), at(0, 4)}, false},
		{"Reduce side by side", reduce, []device.Tensor{at(0, 4), at(4, 4)}, false},
		{"Reduce, src one element later", reduce, []device.Tensor{at(0, 4), at(1, 4)}, true},
		{"Reduce in one element", reduce, []device.Tensor{at(0, 4), at(3, 4)}, true},
		{"AllGather in place", allGather, []device.Tensor{at(0, 8), at(4, 4)}, false},
		{"AllGather side by side", allGather, []device.Tensor{at(0, 8), at(8, 4)}, false},
		{"AllGather from another part", allGather, []device.Tensor{at(0, 8), at(0, 4)}, true},
		{"AllGather one element beside", allGather, []device.Tensor{at(0, 8), at(5, 4)}, true},
		{"AllGather, uneven, in place", uneven, []device.Tensor{at(0, 8), at(3, 5)}, false},
		{"AllGather, uneven, one element beside", uneven, []device.Tensor{at(0, 8), at(4, 5)}, true},
		{"Gather in place", gather, []device.Tensor{at(0, 8), at(4, 4)}, false},
		{"Gather from another part", gather, []device.Tensor{at(0, 8), at(0, 4)}, true},
		{"ReduceScatter in place", reduceScatter, []device.Tensor{at(4, 4), at(0, 8)}, false},
		{"ReduceScatter to another part", reduceScatter, []device.Tensor{at(0, 4), at(0, 8)}, true},
		{"ReduceScatter over the start of src", reduceScatter, []device.Tensor{at(0, 4), at(3, 8)}, true},
		{"Scatter in place", scatter, []device.Tensor{at(4, 4), at(0, 8)}, false},
		{"Scatter one element beside", scatter, []device.Tensor{at(5, 4), at(0, 8)}, true},
		{"AllToAll side by side", allToAll, []device.Tensor{at(0, 8), at(8, 8)}, false},
		{"AllToAll in place", allToAll, []device.Tensor{at(0, 8), at(0, 8)}, true},
		{"AllToAll in one element", allToAll, []device.Tensor{at(0, 8), at(7, 8)}, true},
		{"two all-reduces side by side", twoSums, []device.Tensor{at(0, 4), at(4, 4)}, false},
		{"two all-reduces", twoSums, []device.Tensor{at(0, 4), at(3, 4)}, true},
		{"an all-gather in place beside a broadcast", gatherAndBroadcast, []device.Tensor{at(0, 8), at(4, 4), at(8, 4)}, false},
		{"an all-gather in place and a broadcast", gatherAndBroadcast, []device.Tensor{at(0, 8), at(4, 4), at(7, 4)}, true},
		{"a reduce-scatter in place and an all-reduce", scatterAndSum, []device.Tensor{at(8, 4), at(4, 8), at(1, 4)}, true},
		{"a send and a receive", sendAndReceive, []device.Tensor{at(0, 4), at(3, 4)}, true},
		{"two sends of one memory", twoSends, []device.Tensor{at(0, 4), at(0, 4)}, false},
		{"a call of a group that overlaps by itself", allToAllInGroup, []device.Tensor{at(0, 8), at(7, 8)}, true},
	} {
		groups, _ := local(t, 2, &comm.Options{Timeout: time.Hour})
		waiting := groups[0].Barrier()
		usage := rejection(func() { c.call(groups[1], c.ops...) })
		if (usage != nil) != c.reject || usage != nil && (usage.Rank != 1 || !strings.Contains(usage.Msg, "overlaps") || strings.Count(usage.Msg, "[0x") < 2) {
			t.Errorf("%s: rejected by %v, want a rejection: %v", c.name, usage, c.reject)
		}
		if usage != nil {
			if err := waiting.Sync(t.Context()); !errors.As(err, &usage) || usage.Rank != 1 {
				t.Errorf("%s: the other rank's call ended with %v", c.name, err)
			}
			var call *failure.CallError
			if err := groups[1].Barrier().Sync(t.Context()); !errors.As(err, &call) || call.Call != "Barrier #1" {
				t.Errorf("%s: the next call ended with %v, want it to be the first that is numbered", c.name, err)
			}
		}
		each(groups, func(_ int, pg *comm.ProcessGroup) { pg.Abort(nil); pg.Close() })
	}
}

// If a call in a subgroup is rejected, all groups break. The errors of all ranks name the rank
// that made the call, by its number in the job.
func TestRejectedCallInASubgroupBreaksAllGroups(t *testing.T) {
	commtest.OnRanks(t, 4, &comm.Options{Timeout: time.Hour}, func(pg *comm.ProcessGroup) error {
		ctx := context.Background()
		defer pg.MonitoredBarrier(ctx) // no rank leaves before all ranks know of the failure
		sub, err := pg.Split(ctx, pg.Rank()/2, 0)
		if err != nil {
			return err
		}
		if err := pg.MonitoredBarrier(ctx); err != nil { // when it returns, all ranks have called Split
			return err
		}
		x := vec(1, 2)
		if pg.Rank() == 3 {
			if usage := rejection(func() { sub.AllToAll(x, x) }); usage == nil || usage.Rank != 3 {
				return fmt.Errorf("refused with %v, want rank 3 of the job", usage)
			}
		}
		for _, g := range []*comm.ProcessGroup{pg, sub} {
			for err = nil; err == nil; { // repeat until this rank knows of the failure
				err = g.Barrier().Sync(ctx)
			}
			var usage *failure.UsageError
			if !strings.Contains(err.Error(), ": AllToAll: dst [0x") || !errors.As(err, &usage) || usage.Rank != 3 {
				return fmt.Errorf("group of %d: got %v", g.Size(), err)
			}
		}
		return nil
	})
}

// If the program does not recover from the panic of a rejected call, its process ends. The
// other ranks still get the cause.
func TestRejectedCallThatEndsTheProcessIsTheCause(t *testing.T) {
	testkit.Long(t)
	for r, p := range startWorld(t, 3, "overlap") {
		want := "process group aborted: by rank 1: AllToAll: dst [0x"
		if r == 1 {
			want = "panic: rank 1: AllToAll: dst [0x"
		}
		if p.Wait() == 0 || !strings.Contains(p.Stderr(), want) {
			t.Errorf("rank %d does not say %q", r, want)
		}
	}
}
