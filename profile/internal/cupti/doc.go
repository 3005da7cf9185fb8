// Package cupti records what a GPU ran (kernels, copies, memsets) by the Activity interface of CUPTI,
// the library with which NVIDIA's own profilers observe a GPU. It opens the library when the first
// recording starts. Until then it costs nothing.
//
// # Records
//
// CUPTI writes a record of each piece of work into buffers that this package gives it. A buffer has
// one owner at a time: CUPTI from its request until its completion, then the collector's list (collect.c),
// then the goroutine that reads it, which frees it. CUPTI's own thread calls the collector, so the
// collector is C and takes one lock for a few instructions. [Recording.Take] asks CUPTI for its buffers
// and reads them.
//
// Work of a graph has a record for each node, because graphs as a whole are not recorded.
//
// CUPTI's times are converted to the host's clock, time.Now's, by reading both clocks at once at each Take.
//
// # Versions
//
// The records grow at their end from one version of CUPTI to the next. This package reads only fields
// whose offsets are the same in these versions of the records' types: CUpti_ActivityKernel5 to 13 (CUDA
// 12.0 has the 9th, 13.0 the 10th, 13.2 the 11th), CUpti_ActivityMemcpy4 to 7, CUpti_ActivityMemcpyPtoP3 and
// 4, CUpti_ActivityMemset3 to 5 and CUpti_ActivityAPI. It was run with CUPTI 13.0. It refuses CUPTI of
// before 11.8.
//
// # One recorder in a process
//
// The Activity interface exists once in a process, and so does this package's state. Recordings of several
// GPUs share it. If another profiler uses the interface, such as Nsight Systems, CUPTI may refuse to record,
// and Start fails.
package cupti
