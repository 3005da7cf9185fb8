// Package profile records the spans of a training run, writes them as a trace, and computes how much of
// the communication was hidden behind computation.
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
package profile
