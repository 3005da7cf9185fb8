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

// Ending reports whether, in the last pass that reduced, some rank asked all ranks to end their loops, once for each
// request. If want is true, this rank asks them in its next pass that reduces. Ending waits for the outcome of the last
// pass as Err does.
func (r *Reducer) Ending(want bool) bool {
	r.awaitOutcome()
	isEnding := r.isEnding
	r.isEnding, r.wantsEnd = false, want && !isEnding
	return isEnding
}

// endRequest is what a rank proposes instead of a signal if it asks all ranks to end their loops.
const endRequest = syscall.Signal(-1)

// stopToRequest is called at the end of each pass. It returns the signal because of which this rank must
// now ask all ranks to stop. It returns 0 if there is no such signal, or if the ranks have already agreed
// to stop.
func (r *Reducer) stopToRequest() syscall.Signal {
	if r.heedsStop && r.stop == 0 {
		if sig := r.pg.StopRequested(); sig != 0 {
			return sig
		}
	}
	if r.wantsEnd {
		return endRequest
	}
	return 0
}

// agreeToStop takes what the ranks have agreed on in the last pass: a signal as the reason to stop, endRequest, or 0.
func (r *Reducer) agreeToStop(sig syscall.Signal) {
	if sig == endRequest {
		r.isEnding = true
	} else if sig != 0 {
		r.stop = sig
	}
}
