// Package watchdog decides what a rank does when a collective fails. It is the
// pure core of comm's watchdog: told what happened, it answers what to do; comm
// does it, each step within a bound of its own.
//
// When a call is overdue the rank asks the others what they do, so that the failure that the
// coordinator then decides names the culprit. Any other failure, a dead peer for instance, names
// its culprit already. Whatever it was, every rank writes its record down and does
// what its [Mode] says.
package watchdog
