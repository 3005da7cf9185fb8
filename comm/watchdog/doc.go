// Package watchdog decides what a rank does when a collective fails. It is the
// pure core of comm's watchdog: told what happened, it answers what to do; comm
// does it, each step within a bound of its own.
//
// A call that is overdue is announced to all ranks, which answer with their
// records and with whom they wait for, so that the message can name the culprit
// before anything is aborted. A failure that the backend noticed, a dead peer for instance, names
// its culprit already. Whatever it was, the rank writes its record down, aborts
// its groups and does what its [Mode] says; so do the ranks that were told.
package watchdog
