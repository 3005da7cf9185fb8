package ddp

// Stopping reports whether all ranks stop now, because SIGINT or SIGTERM has asked a process to stop:
//
//	for step := 0; step < steps && !model.Stopping(); step++ {
//		... // train
//	}
//	... // save; comm.Main exits with 128 plus the signal's number
//
// From the first call of Stopping on, the first signal to this process is a request: it does not end the
// context that [comm.Main] gave the program. A rank that received a signal sends the request
// with the gradients of each reducing pass. Stopping therefore becomes true on all ranks after the
// same pass, also on ranks without a signal, and remains true. A request that comes during the last pass
// is delivered by the next one.
//
// Stopping does not communicate. Call it between passes, in a loop after the optimizer's Step; elsewhere it
// waits, on a GPU, for the outcome of the last pass. Within [Model.Join] each rank's loop calls it. After
// Join it returns the same on all ranks.
func (m *Model) Stopping() bool {
	sig := m.reducer.Stopping()
	if sig == 0 {
		return false
	}
	m.pg.AcceptStop(sig)
	return true
}

// Ending makes the ranks agree to end their loops for a reason of the program, such as a limit of time. A rank that wants
// to end its loop gives true, and asks all ranks in its next reducing pass. Ending returns true on all ranks after that
// pass, once. It is called as [Model.Stopping] is, by all ranks, and does not communicate either:
//
//	for step := 0; step < steps && !model.Ending(time.Since(start) > time.Hour); step++ {
//		... // train
//	}
func (m *Model) Ending(want bool) bool { return m.reducer.Ending(want) }
