// Package cupti records a GPU's kernels, copies and memsets through the Activity API of CUPTI, the library
// behind NVIDIA's profilers. It loads the library when the first recording starts. Until then it costs
// nothing.
//
// # Records
//
// CUPTI writes a record of each activity into buffers that this package provides. A buffer has one owner at
// a time: CUPTI from its request until its completion, then the collector's list (collect.c), then the
// goroutine that reads it, which frees it. CUPTI's own thread calls the collector, so the collector is C and
// takes one lock for a few instructions. [Recording.Take] flushes CUPTI's buffers and reads them.
//
// A graph has a record for each node; records of whole graphs are not enabled.
//
// CUPTI's times are converted to the host's clock, time.Now's, by reading both clocks at once at each Take.
//
// # Versions
//
// New versions of CUPTI append fields to the records. This package reads only fields whose offsets are the
// same in these versions of the records' types: CUpti_ActivityKernel5 to 13 (CUDA 12.0 has the 9th, 13.0 the
// 10th, 13.2 the 11th), CUpti_ActivityMemcpy4 to 7, CUpti_ActivityMemcpyPtoP3 and 4, CUpti_ActivityMemset3
// to 5 and CUpti_ActivityAPI. It was tested with CUPTI 13.0. It rejects CUPTI before 11.8.
//
// # One profiler per process
//
// The Activity API is global to a process, and so is this package's state. Recordings of several GPUs share
// it. If another profiler uses the interface, such as Nsight Systems, CUPTI may refuse to record, and Start
// fails.
package cupti
