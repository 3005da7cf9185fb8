// Command percall compares the time of an all-reduce of goddp with that of NCCL, float32 sum in
// place:
//
//	make test-gpu
//	build/gpu/golaunch --nproc-per-node 2 build/gpu/percall
//
// For sizes up to some hundred kilobytes goddp may use its own kernel (see comm/internal/nccl). With
// GODDP_NO_SMALL_ALLREDUCE=1 goddp calls NCCL for all sizes.
//
// On a virtual machine, the same code can take 1.5 times as long in one process as in the next, which
// is more than goddp's overhead. A comparison of two programs, like bench/gpu_allreduce.sh, therefore
// also compares processors. Here all sides run in one process per rank and on one thread of it,
// because comm.Init locks a GPU's goroutine to its thread. They take turns on the same memory:
//
//	C          one C function makes --iters calls of ncclAllReduce on a communicator and a
//	           stream of its own, calls cuStreamQuery until the stream is done, and takes
//	           the time
//	C, events  the same with an event after each call, which is needed to detect calls
//	           that hang
//	goddp      --iters calls of ProcessGroup.AllReduce, and Sync of the last
//
// Each turn begins with two all-reduces of one element on the turn's side, so that the ranks start
// at nearly the same time and the side's code is in the caches. The order of the sides changes with
// every turn. The garbage collector runs as in "goddp bench". Before the turns of a size, each side
// sums ones, and the sums are checked.
//
// The output has one line for each size:
//
//	bytes      C us  C, events  goddp us  added us   middle half  limit
//	 1024      9.12       9.50     10.05      0.91  0.83 ..  1.04  C + 2 us ok
//
// The times are those of one call, the median over the turns. "added us" is the median difference
// within a turn between goddp and C without events; the middle half of these differences is next to
// it. Each column shows the largest value of all ranks. goddp may add 2 microseconds up to 1 MiB,
// and 5 percent of C's time above. The exit code is 1 if a limit is missed, and 2 if the command
// line is wrong or there is no GPU.
package main
