package launcher

import "time"

// exit is a worker's end as the watcher saw it.
type exit struct {
	p      *process
	status Status
	at     time.Time
}

// reap waits for a worker that ended at the given time, or for one to end.
func (p *process) reap(at time.Time) exit {
	state, err := p.cmd.Process.Wait()
	if at.IsZero() {
		at = time.Now()
	}
	if err != nil {
		// Somebody else in this process waits for any child and took the status.
		return exit{p: p, status: Status{Code: 1}, at: at}
	}
	return exit{p: p, status: statusOf(state), at: at}
}

// watchOne sends the end of one process. Among several, exits that come close
// together arrive in the order of the scheduler, not of the kernel.
func watchOne(p *process, exits chan<- exit) { exits <- p.reap(time.Time{}) }
