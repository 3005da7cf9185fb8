// Package election elects the agent of a job that hosts the rendezvous.
//
// An election is held in etcd. Linking etcd's client would make every start of golaunch a third slower, even without
// etcd. So the client is in a separate command, golaunch-etcd, which golaunch starts if needed: [Start] and [Serve]
// are the two ends.
package election

import (
	"context"
	"errors"
	"time"
)

// Options say how to reach etcd, and which job the election is of.
type Options struct {
	Endpoints                 []string // host:port, or URLs
	HTTPS                     bool
	CAFile, CertFile, KeyFile string // PEM files for HTTPS; "" means the system's authorities, and no certificate
	Username, Password        string
	Name                      string        // the job's name
	TTL                       time.Duration // how long a dead host stays elected; a number of seconds
}

// State is how far a job is.
type State struct {
	Epoch    int // number of the next round
	Restarts int
	Nodes    int // number of nodes that can go on if the host is lost
}

// Election is the election of one job.
type Election interface {
	// Elect returns the address of the elected agent. If there is none, this agent stands for election
	// with the address addr; if it is elected, Elect returns its term.
	//
	// dead is the address of a host that this agent has lost, or "". Elect waits until that host's lease expires. If
	// the lease is renewed, the host is alive and was only partitioned from this agent, and Elect returns its
	// address.
	//
	// Elect returns ErrJobEnded if there is no host because the job has ended since this agent's first call.
	Elect(ctx context.Context, addr, dead string) (host string, term Term, err error)
	// Close ends the connection. A term must have ended before.
	Close() error
}

// Term is the time during which this agent is elected.
type Term interface {
	// State returns how far the job was when this agent was elected.
	State() State
	// Save writes how far the job is. It returns ErrOver if this agent is not elected any more.
	Save(ctx context.Context, s State) error
	// Over returns a channel that is closed when this agent is no longer elected, or cannot know.
	Over() <-chan struct{}
	// Resign ends the term at once, so that another agent can be elected. If the job has ended, its state
	// is deleted, and agents that have looked for its host get ErrJobEnded from Elect.
	Resign(ctx context.Context, ended bool) error
}

// ErrJobEnded is returned to an agent that lost or did not reach the host, if the job has ended in the meantime.
var ErrJobEnded = errors.New("the job has ended while this node could not reach its host")

// ErrOver is the error of a term that is over.
var ErrOver = errors.New("this agent no longer hosts the rendezvous: it did not renew its term in etcd in time")
