package reducer

import "syscall"

// Stopping returns the signal for which all ranks agreed to stop, or 0. From the first call on, a
// signal to this process is a request to stop ([comm.ProcessGroup.StopRequested]). The request travels in
// the status of the next pass that this rank finishes. The outcome of that pass is the agreement: all
// ranks see it after the same pass, and it stays. Stopping waits for the outcome of the last pass as Err
// does.
func (r *Reducer) Stopping() syscall.Signal {
	r.heedsStop = true
	r.pg.StopRequested()
	r.awaitOutcome()
	return r.stop
}

// stopToRequest returns the signal for which this rank has to ask all ranks to stop in the pass that
// ends, or 0.
func (r *Reducer) stopToRequest() syscall.Signal {
	if !r.heedsStop || r.stop != 0 {
		return 0
	}
	return r.pg.StopRequested()
}

// agreeToStop sets r.stop if the outcome of a pass says that some rank asks all to stop.
func (r *Reducer) agreeToStop() {
	if sig := r.status.stopRequested(); sig != 0 {
		r.stop = sig
		r.status.isStale = true
	}
}
