//go:build !linux

package launcher

import "syscall"

// leftovers finds what of a job is alive, calls act for each, and returns them,
// as targets for kill(2): those of groups that still have members.
func leftovers(jobID string, groups []int, act func(target int)) (found []int, err error) {
	for _, pgid := range groups {
		if syscall.Kill(-pgid, 0) == nil {
			act(-pgid)
			found = append(found, -pgid)
		}
	}
	return found, nil
}

// exiting would report whether process pid is on its way out; this system does
// not say.
func exiting(pid int) bool { return false }
