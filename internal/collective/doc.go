// Package collective measures the collectives of a process group as nccl-tests
// does, and checks their results in the same run: the package behind
// "goddp bench".
//
// # Time
//
// A time is what one call takes among many: the host's clock around so many
// calls started back to back and the wait for the last, divided by their
// number; the largest over the ranks. Calls that the device runs are thus
// hidden behind each other's start, as those of a backward pass are. With
// Config.Repeat that is done several times, and a rank's time is its median.
//
// Garbage is collected when Go thinks it is time, as in the program that the calls
// are measured for, and the heap is first filled. A collection asked for before each
// round would have the runtime give memory back, which the calls then fault in.
//
// # Bandwidth
//
// A row's size is that of the larger of a rank's two tensors, in bytes. algbw
// is size over time. busbw is algbw times a factor for the bytes that n ranks
// have to move at least, which makes it comparable with the speed of the
// hardware, whatever n is:
//
//	all_reduce                              2(n-1)/n
//	all_gather, reduce_scatter, all_to_all   (n-1)/n
//	broadcast, reduce, sendrecv              1
//
// These are the definitions of nccl-tests' doc/PERFORMANCE.md.
//
// # Memory
//
// AllReduce, Broadcast and Reduce are called in place, the others out of
// place, as the API has it. Memory comes from ProcessGroup.Alloc.
//
// # Check
//
// Every rank fills its source with numbers that all ranks can draw, and
// compares each element that it receives with what it must be. The numbers are
// small integers whose reduction every element type holds exactly. Only an
// average of floats over a number of ranks that is no power of two is given the
// rounding errors that it may have.
package collective
