package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// A worker's exit codes.
const (
	exitLingered = 5 // the group failed, and the process lived on
	exitStranded = 6 // the group failed, and the worker could make no other
	exitFault    = 7 // the fault is an exit
	exitWrong    = 9 // a sum was wrong, or a call on a failed group succeeded
)

// How long a worker waits.
const (
	joinTime   = 30 * time.Second        // for all others to start, on a busy machine
	lingerTime = 1200 * time.Millisecond // longer than comm lets a process live that it must end
)

// sizes are the numbers of elements of a round's reductions. All differ, so that ranks notice a
// reduction that one of them leaves out. The last operand is in memory from pg.Alloc.
var sizes = [...]int{8, 5000, 60000}

// worker is one rank. The fields above the empty line are flags.
type worker struct {
	fault       string
	victim      int
	round, call int
	delay       time.Duration
	pick        int
	onError     string
	finish      string
	timeout     time.Duration
	rejoin      time.Duration
	isBlind     bool
	stagger     time.Duration

	rank         int
	now          int  // the current round
	hasCommitted bool // the worker has committed the fault
	isSecond     bool // the current group is not the first
}

func (w *worker) say(event, format string, args ...any) {
	fmt.Printf("@chaos %d %d %s %s\n", w.rank, os.Getpid(), event, fmt.Sprintf(format, args...))
}

// wrong reports a finding that fails the scenario, and ends the process.
func (w *worker) wrong(format string, args ...any) {
	w.say("wrong", format, args...)
	os.Exit(exitWrong)
}

// train makes a group and does rounds until the job ends. After a failure it goes on with another
// group if onError is "recover".
func (w *worker) train(ctx context.Context) error {
	time.Sleep(time.Duration(w.rank) * w.stagger)
	for ; ; w.isSecond = true {
		limit := joinTime
		if w.isSecond {
			limit = w.rejoin
		}
		pg, err := comm.Init(ctx, &comm.Options{Timeout: limit})
		if err != nil {
			if !w.isSecond || ctx.Err() != nil {
				return err
			}
			w.say("stranded", "%v", err)
			os.Exit(exitStranded)
		}
		w.say("joined", "")
		err = w.rounds(ctx, pg)
		if err == nil {
			w.say("done", "")
			return pg.Close()
		}
		w.say("caught", "%v", err)
		switch w.onError {
		case "hang":
			time.Sleep(time.Hour) // to comm the program is stuck
		case "linger":
			w.linger(ctx, pg)
			return err
		}
		if pg.Close(); w.onError != "recover" || ctx.Err() != nil {
			return err
		}
	}
}

// linger lives on after the group has failed, and checks that a call on the group fails.
func (w *worker) linger(ctx context.Context, pg *comm.ProcessGroup) {
	defer pg.Close()
	select {
	case <-time.After(lingerTime):
	case <-ctx.Done():
		return
	}
	err := pg.Barrier().Wait(ctx)
	if err == nil {
		w.wrong("a barrier that succeeded in a failed group")
	}
	w.say("later", "%v", err)
	os.Exit(exitLingered)
}

// operand is what a reduction reduces.
type operand struct {
	values []float32     // on the host
	t      device.Tensor // on the device
}

// newOperand allocates an operand by pg.Alloc if inGroupMemory, else by the device.
func newOperand(pg *comm.ProcessGroup, elements int, inGroupMemory bool) (operand, error) {
	alloc := pg.Device().Alloc
	if inGroupMemory {
		alloc = pg.Alloc
	}
	buf, err := alloc(4 * elements)
	if err != nil {
		return operand{}, err
	}
	return operand{make([]float32, elements), device.NewTensor(buf, device.Float32, elements)}, nil
}

// allReduce reduces the operand and waits until o.values holds the result.
func (w *worker) allReduce(ctx context.Context, pg *comm.ProcessGroup, o operand, op comm.ReduceOp) error {
	dev := pg.Device()
	host := device.HostTensor(o.values, device.Float32).Buf.Host()
	if err := dev.CopyIn(dev.Compute(), o.t.Buf, host); err != nil {
		return err
	}
	work := pg.AllReduce(o.t, op)
	if err := work.Wait(ctx); err != nil {
		return err
	}
	if w.onError != "recover" { // in blocking wait, Wait itself must return the error
		if err := work.Sync(ctx); err != nil {
			return err
		}
	}
	return dev.CopyOut(ctx, dev.Compute(), host, o.t.Buf)
}

// rounds does rounds until rank 0 has notified all ranks that the job ends.
func (w *worker) rounds(ctx context.Context, pg *comm.ProcessGroup) error {
	operands := make([]operand, len(sizes))
	for i, n := range sizes {
		var err error
		if operands[i], err = newOperand(pg, n, i == len(sizes)-1); err != nil {
			return err
		}
	}
	pg = pg.With(&comm.CallOptions{Timeout: w.timeout})
	// The ranks of a second group may have failed in different rounds: go on with the last one.
	rounds, err := comm.AllGatherInts(ctx, pg, []int64{int64(w.now)})
	if err != nil {
		return err
	}
	for _, of := range rounds {
		w.now = max(w.now, int(of[0]))
	}
	var l *learner
	if w.fault == "stale graph" {
		if l, err = newLearner(pg); err != nil {
			return err
		}
	}
	for w.now++; ; w.now++ {
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) // stands for computing
		isLast := false
		for i, o := range operands {
			ends, err := w.reduce(ctx, pg, i, o)
			if err != nil {
				return err
			}
			isLast = isLast || ends
		}
		if l != nil {
			if err := w.learn(ctx, l, pg); err != nil {
				return err
			}
		}
		if isLast {
			return nil
		}
		if w.now%4 == 0 {
			if err := pg.Barrier().Sync(ctx); err != nil {
				return err
			}
		}
	}
}

// reduce does the i-th reduction of a round. If the fault comes before this reduction, reduce commits the
// fault first. When rank 0 has seen the finish file, it sets the first element of the round's first
// reduction to 1; every rank then returns isLast.
func (w *worker) reduce(ctx context.Context, pg *comm.ProcessGroup, i int, o operand) (isLast bool, err error) {
	for j := range o.values {
		o.values[j] = float32(w.rank + w.now%100 + j%10)
	}
	if i == 0 {
		o.values[0] = 0
		if _, err := os.Stat(w.finish); err == nil && w.rank == 0 {
			o.values[0] = 1
		}
	}
	if w.rank == w.victim && w.now >= w.round && i == w.call && !w.hasCommitted && w.fault != "stale graph" {
		w.hasCommitted = true
		if o, err = w.commit(ctx, pg, o); err != nil || o.values == nil {
			return false, err
		}
	}
	if err := w.allReduce(ctx, pg, o, comm.Sum); err != nil || w.isBlind && !w.isSecond && w.now >= w.round {
		return false, err
	}
	n := pg.Size()
	for j, v := range o.values {
		if i == 0 && j == 0 {
			isLast = v > 0
		} else if want := float32(n*(n-1)/2 + n*(w.now%100+j%10)); v != want {
			w.wrong("a sum of %v, want %v: round %d, reduction %d, element %d", v, want, w.now, i, j)
		}
	}
	return isLast, nil
}
