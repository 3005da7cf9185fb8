// Package profile records the spans of a training run and the activity of the GPU, writes both as a trace, and
// computes how much of the communication overlapped with computation.
//
// Every device has a [Recorder], which [Of] returns. Packages ddp and optim record the forward and
// backward passes, the reduction of each bucket, the waits of the host and of the compute stream for
// reductions, and the optimizer's steps. The recorder is off until Start, and costs one atomic load while
// it is off:
//
//	trace := profile.Of(pg.Device())
//	trace.Start()
//	... train ...
//	trace.WriteFile(profile.RankPath("trace.json", pg.Rank()), pg.Rank()) // opens in ui.perfetto.dev or chrome://tracing
//	fmt.Println(trace.Overlap())
//
// A span starts and ends at a [Moment]. A device's event is a Moment: its time is when the stream reached
// it, on the host's clock. Recording never waits for a device.
//
// # GPU activity
//
// On a GPU, Start also opens CUPTI, NVIDIA's profiling library, which comes with the CUDA toolkit and with
// PyTorch. The trace then contains each kernel, copy and memset, with its stream and the time at which the host
// enqueued it, and the CUDA calls that took 20 µs or more. A captured step (autograd.Capture) is one span; its
// kernels are recorded node by node. Without CUPTI, Start logs one line, and the trace contains only spans.
// CUPTI observes the whole process: the trace of a device contains everything that the process ran on that GPU.
//
// The command "goddp trace" reads the traces of all ranks. It shows how long each computed, communicated and was idle, and
// why; compares two traces; merges the ranks' traces; and draws a step. [RankPath] names the files of the ranks.
package profile
