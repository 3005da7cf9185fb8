package launcher

import (
	"syscall"
	"time"
)

const (
	// firstPoll is the first pause between two looks; the pauses double up to
	// the configured interval.
	firstPoll = time.Millisecond
	// sweepLimit is how long processes that were sent SIGKILL are waited for.
	sweepLimit = 5 * time.Second
)

// sweeper removes what the workers of an attempt left behind. There is no event
// for the end of a process that is not a child, so it looks repeatedly.
type sweeper struct {
	jobID    string
	groups   []int
	interval time.Duration
	kill     <-chan struct{} // closed when asking has had its time
}

// remains is what a sweep could not remove.
type remains struct {
	survivors []int // of SIGKILL
	err       error // why there may be more
}

// run returns when nothing is left, or with what survives SIGKILL, or why it cannot
// know. It asks each process once, with SIGTERM, and kills when told to.
func (s *sweeper) run() remains {
	asked := map[int]bool{}
	ask := func(target int) {
		if !asked[target] {
			asked[target] = true
			_ = syscall.Kill(target, syscall.SIGTERM)
			_ = syscall.Kill(target, syscall.SIGCONT)
		}
	}
	for pause := firstPoll; ; pause = min(2*pause, s.interval) {
		select {
		case <-s.kill:
			return killAll(s.jobID, s.groups, s.interval, sweepLimit)
		default:
		}
		if found, err := leftovers(s.jobID, s.groups, ask); len(found) == 0 && err == nil {
			return remains{}
		}
		select {
		case <-s.kill:
		case <-time.After(pause):
		}
	}
}

// killAll sends SIGKILL to a job's processes until none is left, whatever they
// fork meanwhile, and returns those that live when limit has passed, or why it cannot
// know of any then.
func killAll(jobID string, groups []int, interval, limit time.Duration) remains {
	kill := func(target int) { _ = syscall.Kill(target, syscall.SIGKILL) }
	deadline := time.Now().Add(limit)
	for pause := firstPoll; ; pause = min(2*pause, interval) {
		survivors, err := leftovers(jobID, groups, kill)
		if len(survivors) == 0 && err == nil || time.Now().After(deadline) {
			return remains{survivors, err}
		}
		time.Sleep(pause)
	}
}
