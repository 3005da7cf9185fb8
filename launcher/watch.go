package launcher

import (
	"os"
	"time"
)

// exit is a worker's end as the watcher saw it.
type exit struct {
	c  *child
	at time.Time
	// state is nil if the worker has not been waited for yet.
	state *os.ProcessState
}

// status waits for the worker if need be. Until then the worker is a zombie:
// its process group's number is still its own, and may be signalled.
func (e *exit) status() Status {
	if e.state == nil {
		var err error
		if e.state, err = e.c.cmd.Process.Wait(); err != nil {
			// Somebody else in this process waits for any child and took the status.
			return Status{Code: 1}
		}
	}
	return statusOf(e.state)
}

// watchOne waits for one process. Among several, exits that come close
// together arrive in the order of the scheduler, not of the kernel.
func watchOne(c *child, exits chan<- exit, closed <-chan struct{}) {
	state, _ := c.cmd.Process.Wait() // nil on an error, which status meets again
	select {
	case exits <- exit{c: c, at: time.Now(), state: state}:
	case <-closed:
	}
}
