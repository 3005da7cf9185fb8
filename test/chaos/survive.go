package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	survival "github.com/goddp/goddp/test/survive/job"
)

// survives reports whether the others go on, in the same processes, when the fault takes a worker.
func (s *scenario) survives() bool {
	return slices.Contains([]fault{shrink, replace, doubleFault, sourceDies, stopAndContinue}, s.Fault)
}

// onFailure returns golaunch's --on-failure for a job that survives.
func (s *scenario) onFailure() string {
	if s.Fault == shrink || s.Fault != replace && s.Fault != sourceDies && s.Pick%2 == 0 {
		return "shrink"
	}
	return "replace"
}

// leastSurvivors is the number of ranks of a job that can lose two and go on.
const leastSurvivors = 3

// survivorSteps is the number of steps of a job that survives. Its workers make the last ones when finish was called.
const survivorSteps = 40

// silenceLimit returns golaunch's --silence-limit.
func (s *scenario) silenceLimit() time.Duration { return 2 * s.callTimeout() }

// startSurvivors starts a job that survives. Its victim waits where the phase of the fault begins.
func (j *job) startSurvivors() (err error) {
	dir := j.path("survive")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if j.board, err = survival.OpenBoard(j.path("survive/board")); err != nil {
		return err
	}
	j.board[j.Victim].Hold.Store(uint32(j.Phase))
	return j.run("golaunch", -1, []string{"OMP_NUM_THREADS=1", "GOMAXPROCS=2"}, j.path("golaunch"), "--nproc-per-node", strconv.Itoa(j.World),
		"--max-restarts", "0", "--on-failure", j.onFailure(), "--silence-limit", fmt.Sprint(j.silenceLimit().Seconds()),
		j.path("survivor"), "-steps", strconv.Itoa(survivorSteps), "-finish", j.path("finish"), dir)
}

// poll waits until a condition holds, while the job runs.
func (j *job) poll(ctx context.Context, what string, holds func() bool) error {
	for deadline := time.Now().Add(joinLimit); !holds(); time.Sleep(200 * time.Microsecond) {
		select {
		case <-j.programs[0].done:
			return fmt.Errorf("golaunch %s, and the campaign waited for %s", j.programs[0].status, what)
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", joinLimit, what)
		}
	}
	return nil
}

// loseWorkers commits a fault of a job that survives, and ends the job when all members train again.
func (j *job) loseWorkers(ctx context.Context) (at time.Time, err error) {
	victim := &j.board[j.Victim]
	if err := j.poll(ctx, "the victim to reach its phase", func() bool { return victim.In(j.Phase) }); err != nil {
		return at, err
	}
	time.Sleep(j.Jitter)
	at = time.Now()
	switch {
	case j.Fault == stopAndContinue:
		err = j.stopAndContinue(ctx)
	case j.Fault == doubleFault && !j.Late:
		err = errors.Join(j.kill(j.Victim), j.kill((j.Victim+1)%j.World))
	case j.Fault == doubleFault:
		err = j.killBoth(ctx, survival.Regroup, 1)
	case j.Fault == sourceDies:
		err = j.killBoth(ctx, survival.Send, j.World-1)
	default:
		err = j.kill(j.Victim)
	}
	if err != nil {
		return at, err
	}
	epoch := 1
	if len(j.lost) > 0 {
		epoch = 2
	}
	err = j.poll(ctx, "all members to train", func() bool {
		latest, n := j.board.Training()
		if latest >= epoch && j.toStep == 0 {
			j.toStep = time.Since(at)
		}
		return latest >= epoch && n == j.members()
	})
	return at, errors.Join(err, j.finish())
}

// members returns the number of workers that train at the end.
func (j *job) members() int {
	if j.onFailure() == "shrink" {
		return j.World - len(j.lost)
	}
	return j.World
}

func (j *job) kill(worker int) error {
	j.lose(worker)
	return j.board[worker].Signal(syscall.SIGKILL)
}

func (j *job) lose(worker int) {
	j.lost = append(j.lost, worker)
	j.board[worker].Lost.Store(true)
}

// killBoth kills the victim, and then the first of the n next workers that comes to a phase.
func (j *job) killBoth(ctx context.Context, p survival.Phase, n int) error {
	hold := func(p survival.Phase) {
		for i := range n {
			j.board[(j.Victim+1+i)%j.World].Hold.Store(uint32(p))
		}
	}
	hold(p)
	defer hold(survival.Join)
	if err := j.kill(j.Victim); err != nil {
		return err
	}
	var second int
	err := j.poll(ctx, "a second victim", func() bool {
		for i := range n {
			if second = (j.Victim + 1 + i) % j.World; j.board[second].In(p) {
				return true
			}
		}
		return false
	})
	if err != nil {
		return err
	}
	time.Sleep(j.Jitter)
	return j.kill(second)
}

// stopAndContinue suspends the victim, and lets it go on before golaunch kills it, or after that.
func (j *job) stopAndContinue(ctx context.Context) error {
	victim := &j.board[j.Victim]
	if err := victim.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if j.Late {
		if err := j.poll(ctx, "golaunch to kill the victim", func() bool { return j.isExpelled() }); err != nil {
			return err
		}
		j.lose(j.Victim)
	} else {
		time.Sleep(j.silenceLimit() * 3 / 4)
	}
	if err := victim.Signal(syscall.SIGCONT); err != nil && !j.Late {
		return err
	}
	victim.Hold.Store(uint32(survival.Join))
	return nil
}

// isExpelled reports whether golaunch said that it kills the victim because it is silent.
func (j *job) isExpelled() bool {
	line := fmt.Sprintf(`golaunch: worker %d \(rank \d, pid %d\) is killed: (no message arrived from it|it has not been heard of) for `, j.Victim, j.board[j.Victim].PID.Load())
	return regexp.MustCompile(line).MatchString(j.wrote())
}

// lossLine matches what golaunch says about a worker without which the others go on.
var lossLine = regexp.MustCompile(`(?m)^golaunch: (worker \d+ \(rank \d, pid \d+\)) was killed by SIGKILL(: .*)?; \d workers? go(es)? on$`)

// judgeSurvivors checks that the job has lost the workers that the campaign has taken, and no other, and that it has
// come to the state of an undisturbed run. golaunch may not restart the job, so the others are the same processes.
func (j *job) judgeSurvivors(v *verdict) {
	if p := j.programs[0]; p.status != "exited with 0" {
		v.wrongf("golaunch %s", p.status)
	}
	v.hasCulprit = len(j.lost) > 0
	var named []string
	for _, m := range lossLine.FindAllStringSubmatch(j.wrote(), -1) {
		named = append(named, m[1])
	}
	isNamed := func(id int) bool {
		pid := fmt.Sprintf(", pid %d)", j.board[id].PID.Load())
		return slices.ContainsFunc(named, func(name string) bool {
			return strings.HasPrefix(name, fmt.Sprintf("worker %d (", id)) && strings.HasSuffix(name, pid)
		})
	}
	if len(named) != len(j.lost) || slices.ContainsFunc(j.lost, func(id int) bool { return !isNamed(id) }) {
		v.unnamedf("golaunch names other lost workers than %v: %q", j.lost, named)
	}
	r, err := survival.Judge(j.path("survive"), j.path("survivor"), loopback(), 29500, survival.Options{})
	if err != nil {
		v.wrongf("the state is not that of an undisturbed run: %v", err)
	} else if r.Members != j.members() || r.Steps != survivorSteps || len(j.lost) == 0 && r.Changes != 1 { // the end counts as a change
		v.wrongf("%d workers ended at step %d, want %d at step %d, after %d changes", r.Members, r.Steps, j.members(), survivorSteps, r.Changes)
	}
}
