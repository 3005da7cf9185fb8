// Package watchdog decides what a rank does when a collective fails. It is the pure state
// machine of comm's watchdog: [Core.Step] takes an event and returns actions. Package comm
// carries out the actions, each within a time limit.
//
// When a call is overdue, the rank first asks the other ranks what they are doing, to find the
// rank that caused the delay. Then the coordinator decides which failure is the cause. A
// failure of another kind, such as a dead peer, needs no questions, because its error already
// names the rank at fault. After every failure the rank writes its flight record and does what
// its [Mode] says.
package watchdog
