package rendezvous

import (
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// The events.
type (
	event interface{ isEvent() }

	agentJoined struct {
		id    agentID
		node  NodeInfo
		local bool // the agent is in the host's process
		now   survival
	}
	agentLost struct { // the agent's connection ended, or the agent was silent for too long
		id  agentID
		how string
		at  time.Time
		now survival
	}
	workersDied struct { // the workers of a lost agent are dead for certain
		id     agentID
		goesOn bool // the others go on
	}
	agentLeaves struct { // the agent leaves the job when its workers have ended, as after a signal
		id  agentID
		why string
		at  time.Time
		now bool // the agent leaves at once, because its workers are dead
		survival
	}
	workerFailed struct {
		id      agentID
		epoch   int
		failure failure.Failure // without the node's properties
	}
	workersEnded struct { // all workers of the agent have ended, without a failure or after the stop order
		id       agentID
		epoch    int
		agreed   bool              // they ended because all ranks agreed to stop
		failures []failure.Failure // all failures of the agent's workers, if one failed; they replace the failures known before
	}
	saved           struct{} // the action save is done, so the round may begin
	joinTimeout     struct{ after time.Duration }
	lastCallElapsed struct{}
	hostFailed      struct{ err error } // the host cannot do its part
	hostDeposed     struct{}            // the host is not elected any more
)

func (agentJoined) isEvent()     {}
func (agentLost) isEvent()       {}
func (workersDied) isEvent()     {}
func (agentLeaves) isEvent()     {}
func (workerFailed) isEvent()    {}
func (workersEnded) isEvent()    {}
func (saved) isEvent()           {}
func (joinTimeout) isEvent()     {}
func (lastCallElapsed) isEvent() {}
func (hostFailed) isEvent()      {}
func (hostDeposed) isEvent()     {}

// The actions.
type (
	action interface{ isAction() }

	// refuse sends an agent away.
	refuse struct {
		id     agentID
		reason string
	}
	// hold tells an agent why it waits for a later round.
	hold struct {
		id     agentID
		reason string
	}
	// save saves the number of the round that begins, and of the restarts. The event saved answers it.
	save struct{ epoch, restarts int }
	// begin starts a round on its participants, which are ordered by node rank. failures are the failures
	// that ended the previous round, the root cause first.
	begin struct {
		epoch        int
		participants []*agent
		failures     []failure.Failure
	}
	// admit has an agent take part in the current round, in the place of a lost one.
	admit struct{ agent *agent }
	// awaitDeaths waits until the workers of a lost agent are dead for certain. The event workersDied answers it.
	awaitDeaths struct {
		agent   *agent
		areDead bool // they are dead already
	}
	// stop has the participants stop their workers. If gently, all workers live, so that they can finish
	// their step and save a checkpoint. A second stop of a round is never gentle.
	stop struct {
		epoch   int
		gently  bool
		reason  string
		failure *failure.Failure // the failure that is the reason, without its details; nil if the reason is not a failure
	}
	// startLastCall starts the timer of the last call, cancelLastCall stops it.
	startLastCall  struct{}
	cancelLastCall struct{}
	// release ends the job for an agent that leaves, because its part is complete.
	release struct{ id agentID }
	// resign tells the agents that this host leaves the job, and that another agent becomes the host.
	resign struct{ reason string }
	// end ends the job on all agents.
	end struct{ result Result }
)

func (refuse) isAction()         {}
func (hold) isAction()           {}
func (save) isAction()           {}
func (begin) isAction()          {}
func (admit) isAction()          {}
func (awaitDeaths) isAction()    {}
func (stop) isAction()           {}
func (startLastCall) isAction()  {}
func (cancelLastCall) isAction() {}
func (release) isAction()        {}
func (resign) isAction()         {}
func (end) isAction()            {}
