// Package callstate is what every backend has to remember of its end of a group:
// how many calls are pending, whether more may come, and why the group broke.
// It holds the rules that all backends share: the first cause stays, it is the
// error of every later call, and a call that did not cause it says so in its
// own name.
//
// A group's life, as its ledger has it:
//
//	open      Admit and End count calls
//	broken    after the first Break: Admit returns the cause
//	closing   after Close: Admit returns ErrClosed; it may still break
//	settled   after Settle: it does not break any more
//
// The coordinator decides why a group breaks: a backend that meets a failure has it
// reported, and breaks when the coordinator says so. That is two steps, for the
// peers must know the cause before any call ends with it: Break notes it, then
// AwaitSettled waits for the peers, then Stop ends the context that everything
// else waits on.
package callstate
