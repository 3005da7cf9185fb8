package buckets

import "syscall"

// Stopping returns the signal because of which all ranks have agreed to stop. It returns 0 if they have
// not agreed. Stopping waits for the outcome of the last pass as Err does.
//
// Before the first call of Stopping, a signal has its usual effect. From the first call on, a SIGTERM or
// SIGINT to this process is a request to stop ([comm.ProcessGroup.StopRequested]). In its
// next pass that reduces, this rank sends the request to all ranks. Once the outcome of that pass is known,
// every call of Stopping on every rank returns the signal.
func (r *Reducer) Stopping() syscall.Signal {
	r.heedsStop = true
	r.pg.StopRequested()
	r.awaitOutcome()
	return r.stop
}

// stopToRequest is called at the end of each pass. It returns the signal because of which this rank must
// now ask all ranks to stop. It returns 0 if there is no such signal, or if the ranks have already agreed
// to stop.
func (r *Reducer) stopToRequest() syscall.Signal {
	if !r.heedsStop || r.stop != 0 {
		return 0
	}
	return r.pg.StopRequested()
}

// agreeToStop sets r.stop if, in the last pass, some rank asked all ranks to stop.
func (r *Reducer) agreeToStop() {
	if sig := r.status.stopRequested(); sig != 0 {
		r.stop = sig
		r.isStale = true
	}
}
