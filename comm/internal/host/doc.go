// Package host implements [backend.Backend] for tensors in host memory. Ranks may be goroutines in
// one process, processes on one host, or processes on many hosts.
//
// # How ranks are connected
//
// [New] bootstraps a group through the job's coordinator, and connects every pair of ranks:
//
//   - goroutines of one process through an [InProcess]: Go memory and Go locks, which work with the
//     race detector and with testing/synctest's clock;
//   - processes of one host through shared memory and unix sockets;
//   - all others over TCP.
//
// Two processes try to share memory if they have the same host id ([Options].HostID, by default the
// kernel's boot id and the network namespace). They share memory if one can connect to the other's
// abstract unix socket and each can map a file descriptor that the other sends. Shared memory is a
// sealed memfd, reserved at creation. So nothing remains after the job, writes to it cannot fail for
// lack of memory, and /dev/shm is not needed.
//
// Both ends of a connection must prove that they have the group's key (internal/handshake), which
// every rank gets from the coordinator. The key itself is not sent, and file descriptors are sent
// only after the proof. If the job has no secret, anyone who can read the job's store can get the
// key, except processes of other users on this host, which are rejected. The listeners close when
// the group is complete.
//
// If the job has a secret, the data between ranks on different hosts is encrypted and authenticated,
// unless [Options].Unprotected is set. Modified data then aborts the group, with an error that names
// the peer. docs/results/cpu.md has the cost. Without a secret, anyone who can modify packets
// between the hosts can modify the data.
//
// # How a collective runs
//
// Every collective starts with an exchange of headers. A rank's header contains the fingerprint of
// its call, the location of its tensor and, up to 16 KiB, the data itself. So ranks detect
// mismatched collectives before any memory is written, and a small collective of any kind needs no
// further steps. In shared memory the exchange takes one step. Over connections it takes log2 N
// steps, in which each rank forwards the headers that it has, with at most 32 KiB of data from all
// other ranks. Larger data is transferred afterwards:
//
//   - If all ranks share memory, each rank reads the other ranks' Src directly. Src must come from
//     Alloc; for AllReduce and Reduce, Dst too. If a tensor of any rank does not come from Alloc, the
//     data of all ranks is staged through scratch memory.
//   - If there are several hosts with as many ranks on each, and the ranks of each share memory,
//     AllReduce of tensors from Alloc takes two phases: each rank reduces a slice within its host,
//     and then reduces that slice over connections with the corresponding ranks of the other hosts.
//   - Over connections, AllReduce takes 2 log2 N steps up to 64 KiB per rank, and uses a ring above.
//     Broadcast and Reduce use a tree, or a chain if the data has many segments. AllGather takes
//     log2 N steps, as does ReduceScatter for blocks up to 64 KiB. The other kinds exchange data
//     between all pairs of ranks.
//
// Over connections all ranks choose the same algorithm, because the choice depends only on the call
// and the number of ranks. The comment of each algorithm states its steps and bytes.
//
// The result of a reduction is bit-identical on all ranks, because each element is reduced once, in
// one order: in rank order if one rank has all operands, as in shared memory or from headers, else
// in the order in which the algorithm forwards partial results. 16-bit floats are reduced in
// float32, and rounded once and whenever a partial result is forwarded. Min and Max are NaN if any
// operand is NaN. Integers wrap around. For a PreMulSum each rank first multiplies its tensor, in a
// separate pass.
//
// Collectives run one after the other. Send and Recv have one queue per direction between two ranks.
// A waiting rank spins for some tens of microseconds, yielding the CPU to others, and then sleeps.
//
// # Failure
//
// A group is complete when all ranks have joined. If a rank times out, it reports to the
// coordinator, which notifies all ranks of the missing ones, so that none waits any longer.
//
// The coordinator notifies the ranks when another rank exits; connections between ranks carry only
// data. It detects a dead process within milliseconds, and a lost host after 20 seconds without an
// answer. A rank that detects a failure reports it to the coordinator. If its connection to a peer
// broke, the coordinator first asks that peer for an earlier cause. So all ranks get the cause that
// came first. A call of an aborted group ends only when all responsive ranks know the cause. A rank
// that closes its group notifies the coordinator before its connections close. If ranks read each
// other's memory directly, a rank marks its memory as invalid when its group is aborted, and peers
// discard what they read from it.
//
// Otherwise a blocked call waits until it is done or the group is aborted.
//
// Memory from Alloc that a peer still reads stays valid after its owner has closed the group or
// died. But after a failed call, a peer may still write to the call's tensors for a moment.
package host
