// Command percall measures what an all-reduce of goddp's takes beside one of NCCL's,
// float32 sum in place:
//
//	make test-gpu
//	build/gpu/golaunch --nproc-per-node 2 build/gpu/percall
//
// Up to some hundred kilobytes goddp may run an all-reduce of its own (package
// internal/backend/nccl says when): with GODDP_NO_SMALL_ALLREDUCE=1 it calls NCCL as C does.
//
// A virtual machine's processor may take half as long again for as long as one program
// runs as for the next, which is more than what goddp adds: who compares two programs,
// as bench/gpu_allreduce.sh does, compares processors too. Here all sides are one
// process per rank, and one thread of it, as comm.Init locks a GPU's goroutine to its
// own. They take turns on the same memory:
//
//	C          one call of a C function, which makes --iters calls of ncclAllReduce on
//	           a communicator and a stream of its own, and asks cuStreamQuery until the
//	           stream is done; the time is taken in there
//	C, events  the same with an event behind each call, which it takes to notice that
//	           a call hangs, and which one
//	goddp      --iters calls of ProcessGroup.AllReduce, and Sync of the last
//
// A turn begins with two all-reduces of one element, each waited for, by its own
// side: no rank is far ahead of another then, and each side finds what it needs in the
// caches. Which side goes first changes with every turn. Garbage is collected as in
// "goddp bench", when Go thinks it is time. Before the turns of a size each side adds
// up ones, and the sums are checked.
//
// There is a line for each size:
//
//	bytes      C us  C, events  goddp us  added us   middle half  limit
//	 1024      9.12       9.50     10.05      0.91  0.83 ..  1.04  C + 2 us ok
//
// The times are those of a call, the medians over the turns. What goddp adds to C
// without events is the median of the differences within a turn, and between which
// bounds the middle half of these lie is beside it. Of the ranks each column shows the
// largest. Up to 1 MiB goddp may add 2 microseconds, and beyond, where what moves the
// bytes counts, 5 percent of C's time. The exit code is 1 if a limit is missed, and 2
// for a command line that makes no sense, or without a GPU.
package main
