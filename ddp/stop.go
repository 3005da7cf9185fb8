package ddp

// Stopping reports whether all ranks stop here, as somebody asked them to by SIGINT or
// SIGTERM:
//
//	for step := 0; step < steps && !model.Stopping(); step++ {
//		... // as ever
//	}
//	... // save; comm.Main exits with 128 plus the signal's number
//
// From the first call on, a first signal to this process is a request: it no longer ends
// the context that [comm.Main] gave the program. A rank that was asked tells the others in
// the words that travel with the gradients of each pass that reduces, so that Stopping
// turns true on all ranks behind the same pass, also on those that got no signal. It stays
// true. A request that comes while the last pass is on its way waits for the next one.
//
// Stopping communicates nothing. It is called where no pass is under way, in a loop
// behind the optimizer's Step; elsewhere it waits, on a GPU, for the outcome of the last
// pass. Within [Model.Join] each rank's loop asks it, and when Join has returned it says
// the same on all ranks.
func (m *Model) Stopping() bool {
	sig := m.reducer.Stopping()
	if sig == 0 {
		return false
	}
	m.pg.AcceptStop(sig)
	return true
}
