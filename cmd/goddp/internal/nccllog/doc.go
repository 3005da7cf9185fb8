// Package nccllog reads what NCCL logs when it makes a communicator (NCCL_DEBUG=INFO). It gives four
// verdicts on what NCCL chose: the network; GPUDirect RDMA; the channels and the algorithm; the rings
// and trees.
//
// NCCL has no function that tells its choices, so its log is the one source. Each rank logs its
// connections and its place in each tree; rank 0 alone logs the rings. So the verdicts need the logs
// of all ranks, which [Merge] joins:
//
//	log := nccllog.Parse(text)          // on each rank
//	v := nccllog.Merge(logs).Verdicts() // on one rank
//
// The package knows the lines of NCCL 2.10 to 2.28. Lines that it does not know are ignored.
package nccllog
