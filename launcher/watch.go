package launcher

import (
	"os"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// exit is the exit of a worker that the watcher has observed.
type exit struct {
	c  *child
	at time.Time
	// state is nil if nobody has waited for the worker yet.
	state *os.ProcessState
}

// status returns how the worker ended, and waits for the worker if nobody has. Before
// that, the worker is a zombie, its process group keeps its number, and signals to the
// group are safe.
func (e *exit) status() failure.Status {
	if e.state == nil {
		var err error
		if e.state, err = e.c.cmd.Process.Wait(); err != nil {
			// Other code in this process waits for any child, and took the status.
			return failure.Status{Code: 1}
		}
	}
	return failure.StatusOf(e.state)
}

// watchOne waits for one process and reports its exit. If several processes exit at about
// the same time, the order of the reports depends on the scheduler, not on the kernel.
func watchOne(c *child, exits chan<- exit, closed <-chan struct{}) {
	state, _ := c.cmd.Process.Wait() // after an error, state is nil, and status waits again
	select {
	case exits <- exit{c: c, at: time.Now(), state: state}:
	case <-closed:
	}
}
