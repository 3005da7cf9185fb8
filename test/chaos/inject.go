package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// inject commits the scenario's fault, or waits until the worker has committed it, and lets stopped
// processes go on. It returns the time of the fault. It returns an error if an event does not come
// before its limit.
func (j *job) inject(ctx context.Context) (at time.Time, err error) {
	switch j.Fault {
	case shrink, replace, doubleFault, sourceDies, stopAndContinue:
		return j.loseWorkers(ctx)
	case garbage:
		return j.bother(ctx, func(ctx context.Context, taken *atomic.Int64) error {
			spray(ctx, j.dir, j.Noise, taken)
			return nil
		})
	case stranger:
		return j.bother(ctx, func(ctx context.Context, taken *atomic.Int64) (err error) {
			j.answered, err = intrude(ctx, j.dir, taken)
			return err
		})
	case twoJobs: // the second job has ended before all ranks of the first were started
		return j.bother(ctx, func(_ context.Context, taken *atomic.Int64) error {
			taken.Add(int64(len(j.secondJob)))
			return nil
		})
	case delay, hiccup, skip, resize, overlap, exit, socket, stale:
		e, err := j.await(ctx, joinLimit, "the fault", func(e event) bool { return e.kind == "fault" })
		if err != nil {
			return at, err
		}
		if e.text == "peer" {
			// There may be no error: perhaps no rank uses the connection.
			j.await(ctx, j.callTimeout()+reactionTime, "an error", func(e event) bool { return e.kind == "caught" })
		}
		return e.at, j.finish()
	}
	reached, err := j.await(ctx, joinLimit, "the victim to reach its call", func(e event) bool { return e.kind == "reached" })
	if err != nil {
		return at, err
	}
	time.Sleep(j.Jitter)
	at = time.Now()
	switch j.trouble() {
	case suspend:
		return at, j.suspendAll()
	case launcher:
		return at, j.programs[0].cmd.Process.Kill()
	case reaper:
		pid, err := onlyChild(j.programs[0].cmd.Process.Pid)
		if err != nil {
			return at, err
		}
		return at, syscall.Kill(pid, syscall.SIGKILL)
	case daemons:
		return at, j.finish()
	}
	if j.Fault == store {
		signal := syscall.SIGKILL
		if j.Hang {
			signal = syscall.SIGSTOP
		}
		if err := syscall.Kill(j.storePID, signal); err != nil {
			return at, err
		}
		if j.Then == "" {
			time.Sleep(time.Second) // the ranks do rounds without a store
			return at, j.finish()
		}
	}
	if j.trouble() == kill {
		return at, syscall.Kill(reached.pid, syscall.SIGKILL)
	}
	if err := syscall.Kill(reached.pid, syscall.SIGSTOP); err != nil {
		return at, err
	}
	return at, j.resume(ctx, reached.pid)
}

// suspendAll stops every process of the job for longer than a call's timeout, and lets them go on
// one after the other.
func (j *job) suspendAll() error {
	all := processes(j.dir)
	for _, p := range all {
		if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	time.Sleep(j.suspension())
	for _, p := range all {
		if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
			return err
		}
		time.Sleep(j.resumeInterval())
	}
	return j.finish()
}

// resume lets the stopped victim go on when the other ranks have acted. It does nothing if golaunch
// has to end the victim.
func (j *job) resume(ctx context.Context, pid int) error {
	limit := j.callTimeout() + 10*time.Second
	switch {
	case j.Mode == none:
		time.Sleep(j.callTimeout() + 700*time.Millisecond)
	case j.Mode == blocking:
		if err := j.awaitAll(ctx, limit, "caught", false); err != nil {
			return err
		}
	case j.Setup == golaunch:
		return nil
	default:
		deadline := time.After(limit)
		for _, p := range j.programs {
			if p.rank < 0 || p.rank == j.Victim {
				continue
			}
			select {
			case <-p.done:
			case <-deadline:
				return fmt.Errorf("%s has not ended", p.name)
			}
		}
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return err
	}
	return j.finish()
}

// bother runs f, which disturbs the job until its ctx ends, from the job's start to its end. f counts
// in taken how often it disturbed the job; bother keeps the job running until that is once at least.
func (j *job) bother(ctx context.Context, f func(ctx context.Context, taken *atomic.Int64) error) (at time.Time, err error) {
	at = time.Now()
	bothering, stop := context.WithCancel(ctx)
	var taken atomic.Int64
	var failed error
	var botherer sync.WaitGroup
	botherer.Go(func() { failed = f(bothering, &taken) })
	err = j.awaitAll(ctx, joinLimit, "joined", true)
	if err == nil {
		pause()
		for taken.Load() == 0 && time.Since(at) < joinLimit {
			pause() // the store listens as long as the job runs
		}
		err = j.finish()
	}
	if err == nil {
		err = j.awaitAll(ctx, joinLimit, "done", true)
	}
	stop()
	botherer.Wait()
	if err == nil {
		err = failed
	}
	if err == nil && taken.Load() == 0 {
		err = errors.New("no process listened")
	}
	return at, err
}

// finish creates the file that tells rank 0 to end the job.
func (j *job) finish() error { return os.WriteFile(j.path("finish"), nil, 0o644) }

// pause waits for a time in which a job does many rounds.
func pause() { time.Sleep(100 * time.Millisecond) }
