package rendezvous

import (
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// toHost is a message of an agent to the host of the rendezvous. One field is set.
type toHost struct {
	Join   *joinMessage   `json:",omitempty"`
	Beat   *beat          `json:",omitempty"`
	Failed *failedMessage `json:",omitempty"`
	Ended  *endedMessage  `json:",omitempty"`
	Leaves *leavesMessage `json:",omitempty"`
	Exited *exitedMessage `json:",omitempty"`
}

// toAgent is a message of the host to an agent. One field is set.
type toAgent struct {
	Beat    *beat        `json:",omitempty"`
	Refused *textMessage `json:",omitempty"`
	Hold    *textMessage `json:",omitempty"`
	Begin   *Round       `json:",omitempty"`
	Stop    *StopOrder   `json:",omitempty"`
	End     *Result      `json:",omitempty"`
	Resign  *textMessage `json:",omitempty"` // this host leaves the job, and another agent becomes the host

	// A round that survives lost workers has these messages.
	Verdict *Verdict     `json:",omitempty"`
	Start   *StartOrder  `json:",omitempty"`
	Kill    *KillOrder   `json:",omitempty"`
	Members *Members     `json:",omitempty"`
	Leave   *LeaveAnswer `json:",omitempty"`
	Notice  *textMessage `json:",omitempty"`
}

// textMessage says something to the user.
type textMessage struct{ Text string }

// joinMessage is the first message of an agent.
type joinMessage struct {
	Node NodeInfo
	// Limits are the settings of the agent's user. They must equal the host's settings.
	Limits Limits
	// MasterPort is a free port on the agent's node.
	MasterPort int
}

// beat is sent at every heartbeat. The host returns the agent's beat with Host set, so that the agent
// knows how far the clocks differ.
type beat struct {
	Agent time.Time
	Host  time.Time
}

// failedMessage says that a worker has failed.
type failedMessage struct {
	Epoch   int
	Failure failure.Failure
}

// endedMessage says that all workers of the agent have ended.
type endedMessage struct {
	Epoch    int
	Agreed   bool
	Failures []failure.Failure `json:",omitempty"`
	// MasterPort is a free port on the agent's node, for the next round.
	MasterPort int
}

// leavesMessage says that the agent leaves the job.
type leavesMessage struct {
	Why string
	Now bool // the agent leaves at once, because its workers are dead; otherwise it leaves when they have ended
	// Asks says that the agent waits for a LeaveAnswer before it stops its workers.
	Asks bool
}

// exitedMessage says that the process of a worker has ended.
type exitedMessage struct {
	Epoch int
	Exit
}

// StopOrder has an agent stop its workers.
type StopOrder struct {
	Epoch int
	// Gently says that the workers can finish their step and save a checkpoint.
	Gently bool
	Reason string
	// Failure is the failure for which the workers are stopped, without its long texts; nil if they are stopped
	// for another reason.
	Failure *failure.Failure `json:",omitempty"`
	// Kills says that the workers are killed at once, because the host is lost and will take them for dead.
	Kills bool `json:",omitempty"`
}
