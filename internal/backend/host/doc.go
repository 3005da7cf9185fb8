// Package host is the [backend.Backend] for tensors in host memory: ranks of
// one process, of one host, or of many.
//
// # How ranks are joined
//
// [New] brings the ranks of a group together by way of the job's coordinator and
// joins every two of them:
//
//   - goroutines of one process by a [InProcess]: Go memory under Go's locks, which
//     the race detector sees through and testing/synctest's clock drives;
//   - processes of one host by shared memory, beside unix sockets;
//   - all others by TCP.
//
// Two processes try to share memory when their hosts have the same name
// ([Options].HostID, else the kernel's boot id and the network namespace).
// They do share it if one reaches the other's abstract unix socket and each
// can map a descriptor that the other passes. Shared memory is anonymous,
// reserved when it is made and sealed against shrinking: it leaves nothing
// behind, cannot run out under a writer, and does not depend on /dev/shm.
//
// Nobody joins without the group's key, which those have who have joined the coordinator. Both
// ends of every connection prove that they have it (internal/handshake), which
// does not send it. A descriptor passes after that alone. Without a secret,
// whoever can read the job's store has the key, but for the processes of other users
// on this host, which are refused. The listeners close when the group is
// complete. The data are neither encrypted nor authenticated: who can change
// packets on the network between the hosts can change them.
//
// # How a collective runs
//
// It begins with every rank showing every other one a card: its fingerprint,
// where its memory is, and, up to 16 KiB, the data itself. So ranks that mean
// different calls all learn it before a byte moves, and a small collective of
// any kind is done in one step. What is larger then moves,
//
//   - among ranks that all share memory, where it lies: each rank reads the
//     others' memory itself. That needs tensors in memory of Alloc's, and for
//     AllReduce and Reduce Dst too; if any rank's is not, all go through
//     scratch memory piece by piece;
//   - over connections, by a ring (AllReduce), a chain (Broadcast), or
//     exchanges between all pairs.
//
// Each algorithm's comment gives its steps and bytes. The result of a
// reduction is bitwise equal on all ranks: each element is combined in one
// order, mostly the ranks', on the ring a rotation of it. The 16-bit floats
// are combined in float32 and rounded once, but on the ring at every step.
// Min and Max are NaN where any operand is; integers wrap around. PreMulSum is
// Sum of what each rank multiplied before, in a pass of its own.
//
// Collectives run one after the other; each direction between two ranks has a
// queue of its own for Send and Recv. A rank that waits looks for some tens of
// microseconds, giving way to whoever wants the processor, and then sleeps.
//
// # Failure
//
// A group is made when all ranks have come. One that waits in vain tells the coordinator,
// which knows who did not come, and tells all: nobody waits any longer.
//
// All that ranks have to know of each other's ends goes by way of the coordinator, and links
// carry data alone. It notices within milliseconds that a process died, and after 20 seconds
// of silence that a host vanished. A rank that meets a failure reports it, a connection that
// broke with its peer, who is asked first: all ranks end with the same cause, not with the one
// that fell next. No call of a broken group ends before all ranks know why, if they answer. A rank
// that closes its group says so before its connections end. Ranks whose memory others
// read where it lies show it there when their group has broken: what was read of them then
// counts for nothing.
//
// What else keeps a call from ending, it waits out, or an Abort ends it.
//
// Memory that a peer still reads stays valid when its owner has closed the
// group, or died. A call that failed, though, promises nothing of its tensors:
// a peer may be writing there for a moment yet.
package host
