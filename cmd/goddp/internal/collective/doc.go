// Package collective measures the collectives of a process group as nccl-tests does, and checks
// their results in the same run. It implements "goddp bench".
//
// # Time
//
// A time is an average: the host starts many calls back to back, waits for the last, and divides
// the elapsed time by the number of calls. So the start of a call overlaps the previous call, as in
// a backward pass. The reported time is the time of the slowest rank. With Config.Repeat, a rank's time
// is the median of several such measurements. With Config.Graphs, the calls are captured in a CUDA graph that the host
// launches several times, so a time is that of the GPUs.
//
// The heap is first grown to its usual size, and the garbage collector runs as in a normal program.
// A forced collection before each round would make the runtime return memory to the kernel, and the
// calls would then cause page faults.
//
// # Bandwidth
//
// The size in a row is the size of the larger of a rank's two tensors, in bytes. algbw is the size
// divided by the time. busbw is algbw times a factor for the minimum number of bytes that n ranks
// must move, so it can be compared with the hardware's bandwidth for any n:
//
//	all_reduce                              2(n-1)/n
//	all_gather, reduce_scatter, all_to_all   (n-1)/n
//	broadcast, reduce, sendrecv              1
//
// These are the definitions of nccl-tests' doc/PERFORMANCE.md.
//
// # Memory
//
// AllReduce, Broadcast and Reduce are called in place, the others out of place, as their API
// requires. Memory comes from ProcessGroup.Alloc.
//
// # Check
//
// Every rank fills its source with random numbers that all ranks can compute, and compares each
// element of its result with the expected one. The numbers are small integers, so every element
// type holds their reductions exactly. Rounding errors are accepted only for the average of floats
// over a number of ranks that is not a power of two.
package collective
