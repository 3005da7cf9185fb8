// Package profile records the spans of a training run and what the GPU ran in them, writes both as a
// trace, and computes how much of the communication was hidden behind computation.
//
// Every device has a [Recorder], which [Of] returns. Packages ddp and optim record the forward and
// backward passes, the reduction of each bucket, the waits of the host and of the compute stream for
// reductions, and the optimizer's steps. The recorder is off until Start, and costs one atomic load while
// it is off:
//
//	trace := profile.Of(pg.Device())
//	trace.Start()
//	... train ...
//	trace.WriteFile("trace.json", pg.Rank()) // opens in ui.perfetto.dev or chrome://tracing
//	fmt.Println(trace.Overlap())
//
// A span starts and ends at a [Moment]. A device's event is a Moment: its time is when the stream reached
// it, on the host's clock. Recording never waits for a device.
//
// # What the GPU ran
//
// On a GPU, Start also opens CUPTI, NVIDIA's library for profilers, which comes with CUDA's toolkit
// and with PyTorch. The trace then has each kernel, copy and memset, with its stream and with the time at which
// the host enqueued it, and the calls of CUDA that took 20 µs or more. A captured step (autograd.Capture)
// is one span, and its kernels are there node by node. If there is no CUPTI, Start logs one line, and the
// trace has spans alone. CUPTI observes the whole process: the trace of a device has what any part of the
// process ran on that GPU.
//
// The command "goddp trace trace.json" says from such a trace how long the GPU computed, communicated
// and was idle, and why.
package profile
