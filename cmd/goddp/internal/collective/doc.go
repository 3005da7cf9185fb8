// Package collective measures the collectives of a process group as nccl-tests does, and checks
// their results in the same run. It implements "goddp bench".
//
// # Time
//
// A time is that of one call among many: the host starts the calls back to back and waits for the
// last, and the time of that is divided by the number of calls. The largest time of all ranks
// counts. So a call that runs on the device hides the start of the next one, as in a backward pass.
// With Config.Repeat, this is done several times, and a rank's time is the median.
//
// The garbage collector runs as in the program that the measurement is for, and the heap is first
// grown to its usual size. A collection before each round would make the runtime return memory to
// the kernel, and the calls would then cause page faults.
//
// # Bandwidth
//
// The size in a row is that of the larger of a rank's two tensors, in bytes. algbw is the size
// divided by the time. busbw is algbw times a factor for the bytes that n ranks have to move at
// least. busbw can be compared with the speed of the hardware for any n:
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
