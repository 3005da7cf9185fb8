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

// The exit codes by which a worker tells how it went on after an error.
const (
	exitLingered = 5 // the group failed, the process lived on
	exitStranded = 6 // the group failed, and no other could be made
	exitTold     = 7 // by its flags
	exitWrong    = 9 // a sum was wrong, or a broken group did not say so
)

// How long a worker waits.
const (
	joinTime   = 30 * time.Second        // for all others to start, on a busy machine
	lingerTime = 1200 * time.Millisecond // longer than a process is let live that has to end
)

// sizes are the elements of a round's reductions: all different, so that a call
// left out is not mistaken for the next. The last is in memory of the group's.
var sizes = [...]int{8, 5000, 60000}

// worker is one rank. The fields above the line are its flags.
type worker struct {
	fault       string
	victim      int
	round, call int
	delay       time.Duration
	pick        int
	manner      string
	finish      string
	timeout     time.Duration
	rejoin      time.Duration
	blind       bool
	stagger     time.Duration

	rank      int
	now       int  // the round
	committed bool // the fault
	again     bool // this is not the first group
}

func (w *worker) say(event, format string, args ...any) {
	fmt.Printf("@chaos %d %d %s %s\n", w.rank, os.Getpid(), event, fmt.Sprintf(format, args...))
}

// wrong ends the process: a thing happened that never may.
func (w *worker) wrong(format string, args ...any) {
	w.say("wrong", format, args...)
	os.Exit(exitWrong)
}

// train makes a group and does rounds until the job is over; after a failure,
// where that is its manner, with another group.
func (w *worker) train(ctx context.Context) error {
	time.Sleep(time.Duration(w.rank) * w.stagger)
	for ; ; w.again = true {
		limit := joinTime
		if w.again {
			limit = w.rejoin
		}
		pg, err := comm.Init(ctx, &comm.Options{Timeout: limit})
		if err != nil {
			if !w.again || ctx.Err() != nil {
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
		switch w.manner {
		case "deaf":
			time.Sleep(time.Hour) // stuck, as far as comm can tell
		case "linger":
			w.linger(ctx, pg)
			return err
		}
		if pg.Close(); w.manner != "recover" || ctx.Err() != nil {
			return err
		}
	}
}

// linger lives on with a group that failed, and must say so.
func (w *worker) linger(ctx context.Context, pg *comm.ProcessGroup) {
	defer pg.Close()
	select {
	case <-time.After(lingerTime):
	case <-ctx.Done():
		return
	}
	err := pg.Barrier().Wait(ctx)
	if err == nil {
		w.wrong("a barrier of a group that has failed")
	}
	w.say("later", "%v", err)
	os.Exit(exitLingered)
}

// operand is what a reduction reduces: its values for the program, and where
// the device has them.
type operand struct {
	values []float32
	t      device.Tensor
}

// newOperand has memory of the device's own, or for the last reduction of the
// group's.
func newOperand(pg *comm.ProcessGroup, elements int, ofGroup bool) (operand, error) {
	alloc := pg.Device().Alloc
	if ofGroup {
		alloc = pg.Alloc
	}
	buf, err := alloc(4 * elements)
	if err != nil {
		return operand{}, err
	}
	return operand{make([]float32, elements), device.NewTensor(buf, device.Float32, elements)}, nil
}

// allReduce reduces the operand, and returns once its values are there.
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
	if w.manner != "recover" { // in blocking wait Wait itself must have the error
		if err := work.Sync(ctx); err != nil {
			return err
		}
	}
	return dev.CopyOut(ctx, dev.Compute(), host, o.t.Buf)
}

// rounds does rounds until all ranks have been told that the job may end.
func (w *worker) rounds(ctx context.Context, pg *comm.ProcessGroup) error {
	operands := make([]operand, len(sizes))
	for i, n := range sizes {
		var err error
		if operands[i], err = newOperand(pg, n, i == len(sizes)-1); err != nil {
			return err
		}
	}
	pg = pg.With(comm.CallOptions{Timeout: w.timeout})
	// Ranks that met again may have failed in different rounds.
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
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) // compute
		last := false
		for i, o := range operands {
			told, err := w.reduce(ctx, pg, i, o)
			if err != nil {
				return err
			}
			last = last || told
		}
		if l != nil {
			if err := w.learn(ctx, l, pg); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		if w.now%4 == 0 {
			if err := pg.Barrier().Sync(ctx); err != nil {
				return err
			}
		}
	}
}

// reduce does the i-th reduction of a round, or the fault instead. The first
// element of the first one tells all ranks that rank 0 has seen the finish
// file: this round is the last.
func (w *worker) reduce(ctx context.Context, pg *comm.ProcessGroup, i int, o operand) (last bool, err error) {
	for j := range o.values {
		o.values[j] = float32(w.rank + w.now%100 + j%10)
	}
	if i == 0 {
		o.values[0] = 0
		if _, err := os.Stat(w.finish); err == nil && w.rank == 0 {
			o.values[0] = 1
		}
	}
	if w.rank == w.victim && w.now >= w.round && i == w.call && !w.committed && w.fault != "stale graph" {
		w.committed = true
		if o, err = w.commit(ctx, pg, o); err != nil || o.values == nil {
			return false, err
		}
	}
	if err := w.allReduce(ctx, pg, o, comm.Sum); err != nil || w.blind && !w.again && w.now >= w.round {
		return false, err
	}
	n := pg.Size()
	for j, v := range o.values {
		if i == 0 && j == 0 {
			last = v > 0
		} else if want := float32(n*(n-1)/2 + n*(w.now%100+j%10)); v != want {
			w.wrong("round %d, reduction %d, element %d: %v, want %v", w.now, i, j, v, want)
		}
	}
	return last, nil
}
