// Package host is the [backend.Backend] for tensors in host memory. Its ranks may be goroutines of
// one process, processes of one host, or processes of many hosts.
//
// # How ranks are connected
//
// [New] lets the ranks of a group find each other through the job's coordinator, and connects every
// two of them:
//
//   - goroutines of one process through an [InProcess]: Go memory under Go's locks, which works
//     with the race detector and with testing/synctest's clock;
//   - processes of one host through shared memory and unix sockets;
//   - all others through TCP.
//
// Two processes try to share memory if their hosts have the same name ([Options].HostID, by default
// the kernel's boot id and the network namespace). They share memory if one can connect to the
// other's abstract unix socket and each can map a file descriptor that the other sends. Shared
// memory is anonymous, reserved when it is made, and sealed against shrinking. So it leaves nothing
// behind, a write to it cannot fail for lack of memory, and it does not need /dev/shm.
//
// A connection is accepted only if it proves to have the group's key, which every rank gets when it
// joins the coordinator. Both ends prove it (internal/handshake) without sending the key. File
// descriptors are sent only after that. If the job has no secret, everybody who can read the job's
// store can get the key, except that processes of other users on this host are refused. The
// listeners close when the group is complete.
//
// If the job has a secret, TLS encrypts and authenticates the data between ranks on different hosts,
// unless [Options].Unprotected is set. A change on the way then breaks the group, with an error that
// names the peer. docs/results/cpu.md says what that costs. Without a secret, whoever can change
// packets on the network between the hosts can change the data.
//
// # How a collective runs
//
// Every collective begins with an exchange of headers. A rank's header holds the fingerprint of its
// call, where its memory is, and, up to 16 KiB, the data itself. So if ranks call different
// collectives, all ranks find out before any memory is written, and a small collective of any kind
// takes no more steps. In shared memory the exchange takes one step. Over connections it takes log2
// N, in which each rank passes on the headers that it has, and the data of at most 32 KiB from all
// other ranks. Data that the headers do not hold move afterwards, in one of these ways:
//
//   - If all ranks share memory, each rank reads the other ranks' tensors directly. The tensors must
//     come from Alloc, for AllReduce and Reduce also Dst. If a tensor of any rank does not, the data
//     of all ranks go through scratch memory piece by piece.
//   - If there are several hosts with as many ranks on each, and the ranks of each share memory,
//     AllReduce of tensors from Alloc first reduces within each host: each rank a slice, which it
//     then reduces with the ranks of the same position on the other hosts, over connections.
//   - Over connections, AllReduce takes 2 log2 N steps up to 64 KiB for each rank, and uses a ring
//     above. Broadcast and Reduce use a tree, or a chain if the data have many segments. AllGather
//     takes log2 N steps, and so does ReduceScatter for blocks up to 64 KiB. The other kinds
//     exchange data between all pairs of ranks.
//
// Over connections all ranks choose the same algorithm, because it depends on nothing but the call
// and the number of ranks. The comment of each algorithm states its steps and bytes.
//
// The result of a reduction is bitwise equal on all ranks, because each element is combined once,
// and in one order: the order of the ranks if one rank has all operands, as in shared memory or from
// headers, and else the order in which the algorithm passes partial results on. The 16-bit floats
// are combined in float32. They are rounded once, and each time that a partial result is passed on.
// Min and Max are NaN if any operand is NaN. Integers wrap around. For a PreMulSum each rank
// multiplies its tensor first, in a separate pass.
//
// Collectives run one after the other. Send and Recv have a queue for each direction between two
// ranks. A rank that waits spins for some tens of microseconds, yielding the processor to others,
// and then sleeps.
//
// # Failure
//
// A group is made once all ranks have joined. If a rank times out, it reports that to the
// coordinator, which knows the absent ranks and tells all others, so that none waits any longer.
//
// The coordinator tells the ranks when another rank ends; the connections between ranks carry data
// alone. It notices within milliseconds that a process died, and after 20 seconds without an answer
// that a host is gone. A rank that meets a failure reports it to the coordinator. If its connection
// to a peer broke, the coordinator first asks that peer for an earlier cause. So all ranks end with
// the cause that came first. A call of a broken group ends only when all ranks know the cause, as
// far as they answer. A rank that closes its group tells the coordinator before its connections
// close. If ranks read each other's memory directly, a rank marks its memory when its group breaks,
// and peers discard what they read from it.
//
// Anything else that blocks a call is waited for, until the call is done or the group is aborted.
//
// Memory from Alloc that a peer still reads stays valid after its owner has closed the group or
// died. After a failed call, however, a peer may still write to the call's tensors for a moment.
package host
