//go:build !linux

package launcher

import "errors"

// setSubreaper would make orphans below this process its children; this system has
// no such thing.
func setSubreaper(bool) error { return errors.ErrUnsupported }

// descendants would find all processes below this one, but without setSubreaper nobody asks.
func descendants(func(int)) ([]int, error) { return nil, errors.ErrUnsupported }

// reapOrphans has nothing to do: no orphan becomes this process's child.
func reapOrphans(func(int) bool) {}

// exiting would report whether process pid is on its way out; this system does
// not say.
func exiting(pid int) bool { return false }

// hasLivingMember would tell zombies from living members of a process group that has
// members.
func hasLivingMember(int) bool { return true }
