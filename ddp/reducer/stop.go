package reducer

import "syscall"

// Stopping returns the signal because of which all ranks agreed to stop, 0 if they did
// not. From the first call on, a signal to this process is a request
// ([comm.ProcessGroup.StopRequested]). The request travels in the status of the next
// pass that this rank finishes, and that pass's outcome is the agreement: all ranks see it
// behind the same pass, and for good. Stopping waits for the outcome of the last pass as
// Err does.
func (r *Reducer) Stopping() syscall.Signal {
	r.heedsStop = true
	r.pg.StopRequested()
	r.look()
	return r.stop
}

// askedToStop is what this rank has to ask the others to stop for, in a pass that ends.
func (r *Reducer) askedToStop() syscall.Signal {
	if !r.heedsStop || r.stop != 0 {
		return 0
	}
	return r.pg.StopRequested()
}

// agreeToStop takes from the outcome of a pass whether any rank asks all to stop.
func (r *Reducer) agreeToStop() {
	if sig := r.status.stopRequested(); sig != 0 {
		r.stop = sig
		r.status.stale = true
	}
}
