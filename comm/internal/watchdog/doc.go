// Package watchdog decides what a rank does when a collective fails. It is the pure state
// machine of comm's watchdog: [Core.Step] takes an event and returns actions. Package comm
// carries out the actions, each within a time limit.
//
// When a call is overdue, the rank asks the other ranks what they are doing, so that the
// failure that the coordinator then decides names the culprit. Any other failure, such as a
// dead peer, names its culprit already. After every failure the rank writes its flight record
// and does what its [Mode] says.
package watchdog
