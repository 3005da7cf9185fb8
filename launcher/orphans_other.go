//go:build !linux

package launcher

import "errors"

// setSubreaper returns an error, because this system has no subreapers.
func setSubreaper(bool) error { return errors.ErrUnsupported }

// descendants is never called on this system, because setSubreaper fails.
func descendants(int) finder {
	return func(func(int)) ([]int, error) { return nil, errors.ErrUnsupported }
}

// reapOrphans does nothing, because no orphan becomes a child of this process.
func reapOrphans(func(int) bool) {}

// exiting returns false, because this system does not say whether a process is exiting.
func exiting(pid int) bool { return false }

// hasLivingMember returns true: this system does not tell zombies from living members.
func hasLivingMember(int) bool { return true }
