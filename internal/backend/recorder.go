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
	// StartRecorded starts the calls of a replay that is about to be launched: calls[i] is the call of
	// recorded[i], with a number and an Observer of its own. It starts all of them, or none and
	// returns an error. It is Start of a Backend in all else.
	StartRecorded(recorded []Recorded, calls []*Call) ([]Task, error)
	// LaunchedRecorded says that the replay with the tasks was launched, and ends before the event end;
	// or that this failed with err.
	LaunchedRecorded(tasks []Task, end device.Event, err error)
}

// Recorded is the work of a call in a recorded step.
type Recorded interface {
	// Join makes work that is recorded on s from now on wait for the call.
	Join(s device.Stream) error
}
