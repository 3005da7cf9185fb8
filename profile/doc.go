// Package profile records what ran when, shows it, and says how much of the
// communication was hidden behind computation.
//
// Every device carries one [Recorder], found by [Of]; ddp and optim record
// into it the forward and backward passes, each bucket's reduction, the host's and
// the compute stream's waits for them and the optimizer's steps. It is off until
// Start, and costs one atomic load while off:
//
//	trace := profile.Of(pg.Device())
//	trace.Start()
//	... train ...
//	trace.WriteFile("trace.json", pg.Rank()) // opens in ui.perfetto.dev or chrome://tracing
//	fmt.Println(trace.Overlap())
//
// A span begins and ends at two [Moment]s. A device's events are moments, so
// that the times are those at which a stream reached them, on the host's
// clock, and nothing waits for a device while the program runs.
package profile
