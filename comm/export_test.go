package comm

import (
	"time"

	"github.com/goddp/goddp/internal/flight"
)

// OnExit sets the function that the watchdog of a group with these options calls instead of os.Exit.
func OnExit(o *Options, f func(code int)) *Options {
	o.exit = f
	return o
}

// Settled returns the error mode, the heartbeat and whether the watchdog is monitored. They
// follow from the environment variables and from mode, the error mode in the Options.
func Settled(mode ErrorMode) (ErrorMode, time.Duration, bool, error) {
	j := joiner{Options: Options{ErrorMode: mode}}
	err := j.readSettings()
	return j.ErrorMode, j.env.Failures.Heartbeat, j.env.Failures.Monitoring, err
}

// Recorded returns a rank's flight record.
func Recorded(pg *ProcessGroup) *flight.Dump { return pg.watchdog.recorder.Dump() }

// ExpireDeadlines makes the deadlines of a rank's calls in flight pass. comm does the same if
// the ranks do not agree on a stop request in time.
func ExpireDeadlines(pg *ProcessGroup) { pg.watchdog.expire() }

// IsInterruption reports whether err only says that the program was told to stop.
func IsInterruption(err error) bool { return isInterruption(err) }

// CausedBy returns the rank whose failure caused err on this rank, or nil.
func CausedBy(err error) *int { return causedBy(err) }

// SetNotice sets how long rank 0 waits for the other ranks before it says so.
func SetNotice(o *Options, d time.Duration) { o.notice = d }

// JudgeStragglers has rank 0 compare the times of a window of collectives.
func JudgeStragglers(pg *ProcessGroup, window uint64) { pg.stragglers.judge(pg.watchdog, window) }
