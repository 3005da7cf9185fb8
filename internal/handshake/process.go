package handshake

import (
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"time"
)

// A Process identifies a process, and says where it runs.
type Process struct {
	ID      string // random; "" for an unknown process
	Host    string
	PID     int
	Started time.Time // the approximate start time
}

// ThisProcess returns the process that calls it.
var ThisProcess = sync.OnceValue(func() Process {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return Process{ID: rand.Text(), Host: short(host), PID: os.Getpid(), Started: time.Now().Round(time.Millisecond)}
})

func (p Process) String() string {
	if p.ID == "" {
		return "an unknown process"
	}
	if p.Started.IsZero() {
		return fmt.Sprintf("process %d on %s", p.PID, p.Host)
	}
	return fmt.Sprintf("process %d on %s (started at %s)", p.PID, p.Host, p.Started.Local().Format("15:04:05.000"))
}

// A RivalError says that two processes have the same rank of a job.
type RivalError struct {
	Rank          int
	First, Second Process // in the order in which they connected
}

func (e *RivalError) Error() string {
	return fmt.Sprintf("two processes say that they are rank %d: %v, and %v: they are of two jobs, or one was started twice: %s", e.Rank, e.First, e.Second, Remedy)
}
