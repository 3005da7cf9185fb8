// Package backend is the contract between comm and the transports that move its bytes,
// comm/internal/host and comm/internal/nccl. It defines what a collective is, how one is
// started, and how it fails (package comm/failure). Programs use package comm.
//
// A [Backend] belongs to one rank of one group. It runs calls on its own stream, in the order in
// which they were started. All ranks of a group must start the same collectives in the same order.
// Each call has a fingerprint: its number, kind, reduction, element type, size and root. The
// fingerprints must be equal on all ranks. Send and Recv are ordered only among the calls between
// the same two ranks in the same direction, so two ranks that both send first and receive then do
// not deadlock.
//
// # Failure
//
// When a call fails, the group is broken, because its ranks no longer agree on the next call. That
// call and all later ones return the first cause, and the program must create a new group.
//
// A backend detects only the failures that comm cannot see: transport errors and calls that do not
// match. It reports them to the coordinator, waits until the coordinator has decided which failure
// came first, and then breaks the group with that cause. Backends do not enforce deadlines: comm's
// watchdog reports overdue calls.
package backend
