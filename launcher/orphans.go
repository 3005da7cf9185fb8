package launcher

import (
	"slices"
	"syscall"
	"time"
)

// firstPoll is the first pause between two searches for processes. The pauses double up
// to the configured interval.
const firstPoll = time.Millisecond

// finder searches for live processes. It calls act for each as soon as it finds it, with
// a target for kill(2). It returns the targets, and an error if there may be more.
type finder func(act func(target int)) (found []int, err error)

// stopOrphans stops the processes that find finds. It sends SIGTERM once to each process.
// When kill is closed it sends SIGKILL instead. It returns when find finds nothing, or, with
// the remaining processes, when limit has passed since kill was closed. The end of a
// process that is not a child causes no event, so stopOrphans searches again after pauses
// of at most interval.
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

// killOrphans sends SIGKILL to the processes that find finds, until find finds nothing or
// limit has passed. It then reports the survivors, or why it cannot know them. It does not
// pause while find returns new processes, because a process that forks and exits must be
// killed before it forks again.
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

// groupMembers returns a finder of the process groups that still have members. A process
// that is not a subreaper uses it. The leaders of the groups must have been waited for. The
// kernel gives no process the number of a group that has members. So if a process has a
// group's number, the number belongs to a new group of somebody else.
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
