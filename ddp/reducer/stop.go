package reducer

import "syscall"

// Stopping returns the signal for which all ranks have agreed to stop, or 0. From the first call of
// Stopping on, a signal to this process is a request to stop ([comm.ProcessGroup.StopRequested]). This
// rank sends the request to all ranks in the next pass that it finishes. When the outcome of this pass is
// known, Stopping returns the signal on all ranks, then and in all later calls. Stopping waits for the
// outcome of the last pass as Err does.
func (r *Reducer) Stopping() syscall.Signal {
	r.heedsStop = true
	r.pg.StopRequested()
	r.awaitOutcome()
	return r.stop
}

// stopToRequest returns the signal for which this rank must ask all ranks to stop in the current pass. It
// returns 0 if there is no such signal.
func (r *Reducer) stopToRequest() syscall.Signal {
	if !r.heedsStop || r.stop != 0 {
		return 0
	}
	return r.pg.StopRequested()
}

// agreeToStop sets r.stop if some rank has asked all ranks to stop in the last pass.
func (r *Reducer) agreeToStop() {
	if sig := r.status.stopRequested(); sig != 0 {
		r.stop = sig
		r.status.isStale = true
	}
}
