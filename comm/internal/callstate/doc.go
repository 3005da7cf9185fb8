// Package callstate keeps the state of one rank's end of a group, for all backends alike: how many
// calls are pending, whether more are admitted, and why the group broke. It implements the rules
// that backends share. The first cause is kept and is the error of every later call. A call that
// did not cause the failure ends with an error of its own that wraps the cause.
//
// A group passes these states:
//
//	open       Admit and End count calls
//	broken     after the first Break: Admit returns the cause
//	closing    after Close: Admit returns ErrClosed; the group may still break
//	finalized  after Finalize: the group does not break any more
//
// The coordinator decides why a group breaks. A backend that meets a failure calls Report, and
// breaks the group once the coordinator has decided. It does so in three steps, because the other
// ranks must know the cause before any call ends with it: Break records the cause,
// AwaitAcknowledged waits for the other ranks, and Stop ends the context that all pending calls
// wait on.
package callstate
