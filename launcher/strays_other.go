//go:build !linux

package launcher

import "syscall"

// leftovers returns what of a job is alive, as targets for kill(2): those of
// groups that still have members.
func leftovers(jobID string, groups []int) []int {
	var found []int
	for _, pgid := range groups {
		if syscall.Kill(-pgid, 0) == nil {
			found = append(found, -pgid)
		}
	}
	return found
}

// exiting would report whether process pid is on its way out; this system does
// not say.
func exiting(pid int) bool { return false }
