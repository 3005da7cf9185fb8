package backend

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
)

// Capturer is a Backend whose calls can be part of a captured step: see [capture.Step].
type Capturer interface {
	// Capture enqueues the work of c on a stream whose work is being captured, behind c.After. It
	// starts no call. When the group breaks or is closed, the backend revokes r.
	Capture(c *Call, r *capture.Step) (Captured, error)
	// StartCaptured starts the calls of a replay that is about to be launched: calls[i] is the call of
	// captured[i], with its own sequence number and Observer. It starts all of them, or it starts none
	// and returns an error. Otherwise it is like Backend.Start.
	StartCaptured(captured []Captured, calls []*Call) ([]Task, error)
	// LaunchedCaptured says that the replay with the tasks was launched, or that the launch failed with
	// err. The replay ends before the event end.
	LaunchedCaptured(tasks []Task, end device.Event, err error)
}

// Captured is the work of a call in a captured step.
type Captured interface {
	// Join makes work that is captured on s from now on wait for the call.
	Join(s device.Stream) error
}
