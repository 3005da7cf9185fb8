// Package backend is the contract between comm and the transports that move
// its bytes (internal/backend/host, internal/backend/nccl): what a collective is, how one is started,
// and how it fails. Programs use comm, which re-exports what they need.
//
// A [Backend] belongs to one rank of one group. It runs the calls it is given
// in the order in which it is given them, on a stream of its own; every rank
// of the group starts the same collectives in the same order, and that order,
// with each call's fingerprint (number, kind, reduction, type, size, root), is
// the contract between ranks. Send and Recv are ordered only among the calls
// between the same two ranks in the same direction, so that two ranks that
// first send and then receive do not wait for each other forever.
//
// # Failure
//
// When a call fails, whatever the reason, the group is broken: the ranks no
// longer agree on what comes next. That call and all later ones return the
// first cause, and a new group has to be made. A backend notices what only it
// can see: errors of its transport, calls that do not match. It reports them by the
// coordinator, which decides what broke the group first, and breaks when that has decided.
// Deadlines are not its business: comm's watchdog reports a call that is overdue.
package backend
