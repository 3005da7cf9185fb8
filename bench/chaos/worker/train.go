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
	joinTime   = 30 * time.Second // for all others to start, on a busy machine
	rejoinTime = 3 * time.Second
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
	stagger     time.Duration

	rank      int
	now       int  // the round
	committed bool // the fault
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
	for groups := 0; ; groups++ {
		limit := joinTime
		if groups > 0 {
			limit = rejoinTime
		}
		pg, err := comm.Init(ctx, &comm.Options{Timeout: limit})
		if err != nil {
			if groups == 0 || ctx.Err() != nil {
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

// rounds does rounds until all ranks have been told that the job may end.
func (w *worker) rounds(ctx context.Context, pg *comm.ProcessGroup) error {
	own, err := pg.Alloc(4 * sizes[len(sizes)-1])
	if err != nil {
		return err
	}
	tensors := make([]device.Tensor, len(sizes))
	for i, n := range sizes {
		tensors[i] = device.HostTensor(make([]float32, n), device.Float32)
	}
	tensors[len(sizes)-1] = device.NewTensor(own, device.Float32, sizes[len(sizes)-1])

	pg = pg.With(comm.CallOptions{Timeout: w.timeout})
	// Ranks that met again may have failed in different rounds.
	latest := []float32{float32(w.now)}
	if err := pg.AllReduce(device.HostTensor(latest, device.Float32), comm.Max).Wait(ctx); err != nil {
		return err
	}
	for w.now = int(latest[0]) + 1; ; w.now++ {
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) // compute
		last := false
		for i, t := range tensors {
			told, err := w.reduce(ctx, pg, i, t)
			if err != nil {
				return err
			}
			last = last || told
		}
		if last {
			return nil
		}
		if w.now%4 == 0 {
			if err := pg.Barrier().Wait(ctx); err != nil {
				return err
			}
		}
	}
}

// reduce does the i-th reduction of a round, or the fault instead. The first
// element of the first one tells all ranks that rank 0 has seen the finish
// file: this round is the last.
func (w *worker) reduce(ctx context.Context, pg *comm.ProcessGroup, i int, t device.Tensor) (last bool, err error) {
	values := device.Elements[float32](t)
	for j := range values {
		values[j] = float32(w.rank + w.now%100 + j%10)
	}
	if i == 0 {
		values[0] = 0
		if _, err := os.Stat(w.finish); err == nil && w.rank == 0 {
			values[0] = 1
		}
	}
	if w.rank == w.victim && w.now >= w.round && i == w.call && !w.committed {
		w.committed = true
		if t = w.commit(t); t.IsZero() {
			return false, nil
		}
	}
	if err := pg.AllReduce(t, comm.Sum).Wait(ctx); err != nil {
		return false, err
	}
	n := pg.Size()
	for j, v := range values {
		if i == 0 && j == 0 {
			last = v > 0
		} else if want := float32(n*(n-1)/2 + n*(w.now%100+j%10)); v != want {
			w.wrong("round %d, reduction %d, element %d: %v, want %v", w.now, i, j, v, want)
		}
	}
	return last, nil
}
