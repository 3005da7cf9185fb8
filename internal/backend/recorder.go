package backend

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
)

// Recorder is a Backend whose calls can be part of a recorded step: see [capture.Recording].
type Recorder interface {
	// Record enqueues the work of c on a stream whose work is being recorded, behind c.After. It
	// starts no call. When the group breaks or is closed, the backend revokes r.
	Record(c *Call, r *capture.Recording) (Recorded, error)
}

// Recorded is the work of a call in a recorded step. One goroutine calls its methods.
type Recorded interface {
	// Join makes work that is recorded on s from now on wait for the call.
	Join(s device.Stream) error
	// Start starts c, which is the recorded call with a number and an Observer of its own, for a
	// replay that is about to be launched. It is Start of a Backend in all else.
	Start(c *Call) (Task, error)
	// Launched says that the replay was launched, and ends before the event end; or that this failed
	// with err.
	Launched(end device.Event, err error)
}
