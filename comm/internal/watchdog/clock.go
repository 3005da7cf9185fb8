package watchdog

import "time"

// Tick is the interval at which a watchdog polls its clock while its process runs.
const Tick = 100 * time.Millisecond

// If a poll is at least leastSuspension late, the process was suspended. A busy machine delays polls
// by less.
const leastSuspension = 500 * time.Millisecond

// Clock detects that the process was suspended, by SIGSTOP, a paused virtual machine or a debugger.
// A watchdog polls the Clock every Tick; after a suspension a poll is late. The zero Clock counts as
// polled at time 0.
type Clock struct{ polled time.Duration }

// Poll returns how long the process was suspended since the last poll, or 0. Of the time
// between two polls, one Tick always counts as time in which the process ran.
func (c *Clock) Poll(now time.Duration) (suspended time.Duration) {
	late := now - c.polled - Tick
	c.polled = now
	if late < leastSuspension {
		return 0
	}
	return late
}

// Extend returns the new deadline of a call after a suspension. created is when the call was
// created, now is the time of the poll that detected the suspension, and suspended is the
// length of the suspension. Each suspension extends a deadline once, by at most that length.
// Because one Tick between two polls is never added, a call that hangs is overdue after at most
// timeout/Tick suspensions.
func Extend(deadline, created, now, suspended time.Duration) time.Duration {
	const never = 1<<63 - 1
	return deadline + min(suspended, now-created, never-deadline)
}

// noticeInterval is the minimum time between two notices of suspensions.
const noticeInterval = time.Minute

// Notices counts suspensions, so that an overloaded machine does not fill the log.
type Notices struct {
	next  time.Duration // when the next notice may be due
	count int           // number of suspensions since the last notice
	total time.Duration // total length of these suspensions
}

// Add counts a suspension that was detected at time now. It returns the number and the length of the
// suspensions to notice, or 0 if a notice is not due.
func (n *Notices) Add(now, suspended time.Duration) (count int, total time.Duration) {
	n.count++
	n.total += suspended
	if now < n.next {
		return 0, 0
	}
	count, total = n.count, n.total
	*n = Notices{next: now + noticeInterval}
	return count, total
}
