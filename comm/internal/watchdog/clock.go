package watchdog

import "time"

// Tick is how often a watchdog looks at its clock while its process runs.
const Tick = 100 * time.Millisecond

// leastSuspension is from when on a late look means that the process was
// suspended. A busy machine delays looks by less.
const leastSuspension = 500 * time.Millisecond

// Clock tells from the times at which a watchdog looks at it for how long the
// process was suspended: by SIGSTOP, by a virtual machine that was paused, by a
// debugger. Its zero value is a clock that was looked at at time 0.
type Clock struct{ looked time.Duration }

// Look notes that it is now, and returns for how long the process was suspended
// since the last look, or 0. Of the time between two looks a Tick always counts as
// time in which the process ran.
func (c *Clock) Look(now time.Duration) (suspended time.Duration) {
	late := now - c.looked - Tick
	c.looked = now
	if late < leastSuspension {
		return 0
	}
	return late
}

// Extend returns the deadline of a call that was created, when a look now tells of
// a suspension. Each suspension extends a deadline once, by at most its own length.
// Since a Tick between two looks always counts, a call that hangs is overdue after
// timeout/Tick suspensions at the latest, however often the process is stopped and
// continued.
func Extend(deadline, created, now, suspended time.Duration) time.Duration {
	const never = 1<<63 - 1
	return deadline + min(suspended, now-created, never-deadline)
}
