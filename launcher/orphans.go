package launcher

import (
	"slices"
	"syscall"
	"time"
)

// firstPoll is the first pause between two looks; the pauses double up to the
// configured interval.
const firstPoll = time.Millisecond

// finder finds processes that are alive and calls act for each, as soon as it is
// found, with a target for kill(2). It returns them, and why there may be more.
type finder func(act func(target int)) (found []int, err error)

// stopOrphans returns when find finds nothing, or with what is left limit after kill
// was closed. It asks each process once, with SIGTERM, and kills once kill is closed.
// There is no event for the end of a process that is not a child, so it looks
// repeatedly, at most interval apart.
func stopOrphans(find finder, interval, limit time.Duration, kill <-chan struct{}) orphanReport {
	asked := map[int]bool{}
	ask := func(target int) {
		if !asked[target] {
			asked[target] = true
			_ = syscall.Kill(target, syscall.SIGTERM)
			_ = syscall.Kill(target, syscall.SIGCONT)
		}
	}
	for pause := firstPoll; ; pause = min(2*pause, interval) {
		select {
		case <-kill:
			return killOrphans(find, interval, limit)
		default:
		}
		if found, err := find(ask); len(found) == 0 && err == nil {
			return orphanReport{}
		}
		select {
		case <-kill:
		case <-time.After(pause):
		}
	}
}

// killOrphans sends SIGKILL to what find finds until it finds nothing, and returns
// what lives when limit has passed, or why it cannot know of any then. It does not
// pause as long as new processes come: one that forks and exits must be killed before
// it forks.
func killOrphans(find finder, interval, limit time.Duration) orphanReport {
	killed := map[int]bool{}
	fresh := false
	kill := func(target int) {
		_ = syscall.Kill(target, syscall.SIGKILL)
		fresh = fresh || !killed[target]
		killed[target] = true
	}
	deadline := time.Now().Add(limit)
	for pause := firstPoll; ; {
		fresh = false
		survivors, err := find(kill)
		switch {
		case len(survivors) == 0 && err == nil:
			return orphanReport{}
		case time.Now().After(deadline):
			left := orphanReport{Survivors: survivors}
			if err != nil {
				left.Error = err.Error()
			}
			return left
		case fresh:
			pause = firstPoll
		default:
			time.Sleep(pause)
			pause = min(2*pause, interval)
		}
	}
}

// groupMembers finds process groups that have members, for processes that orphans do
// not become children of. The leaders must have been waited for. A group whose
// leader's number is a process again is a stranger's: no process gets the number of
// a group that has members.
func groupMembers(groups []int) finder {
	return func(act func(target int)) (found []int, err error) {
		groups = slices.DeleteFunc(groups, func(pgid int) bool {
			return syscall.Kill(-pgid, 0) == syscall.ESRCH || syscall.Kill(pgid, 0) != syscall.ESRCH || !hasLivingMember(pgid)
		})
		for _, pgid := range groups {
			act(-pgid)
			found = append(found, -pgid)
		}
		return found, nil
	}
}
