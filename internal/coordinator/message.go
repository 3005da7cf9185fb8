package coordinator

import (
	"fmt"

	"github.com/goddp/goddp/internal/handshake"
)

// A Verb is the type of a message.
type Verb uint8

// The messages that ranks send.
const (
	// Join is a rank's first message. It holds the rank's Process, the Options that must be
	// equal on all ranks, and a Value for the other ranks.
	Join Verb = iota + 1
	// Gather gives a rank's Value of Key to the members of Group. In the first Gather of a group
	// from Split, Ranks are the members.
	Gather
	// Fail reports a Failure. The coordinator asks Ranks about it, and makes it the failure of
	// Group when all of them have answered. With WantAnswers, the coordinator does not decide: it
	// sends the answers to the reporter, as Answered, and the reporter decides by a Fail with
	// Final. A reporter that does not want to wait for all answers repeats the Fail with
	// WantAnswers, and gets the answers so far. If another rank's report has replaced the
	// reporter's own, the first Fail with Final has no effect and the second one decides.
	Fail
	// Ack acknowledges or answers the message Asked, Failed or Leaving with the same Number.
	// Value is the answer.
	Ack
	// Leave says that the rank closes Group without a failure. Value is the rank's progress, for
	// example its number of calls on Group; the coordinator does not interpret it. With Alone the
	// rank does not wait until the other members close Group too. Final, in the group of all
	// ranks, says that the rank leaves the session: the end of its connection is then no failure.
	Leave
	// Query asks which members of Group have not sent a Gather with Key. The answer, Queried, has
	// the same Number.
	Query
	// Post stores Value as the rank's value of Key in Group, if Value is not empty, and asks
	// for the values that Ranks have posted. The answer, Posted, has the same Number.
	Post
)

// The messages that the coordinator sends.
const (
	// Gathered holds the Values of Key, in the order of the members. Values is nil if all values
	// are empty.
	Gathered Verb = iota + 16
	// Asked asks what the rank knows about Failure. The rank must answer by an Ack.
	Asked
	// Answered is sent to the reporter of a Fail with WantAnswers. Values are the answers of
	// Ranks. The answer of a rank that has left is empty.
	Answered
	// Failed holds the Failure that the coordinator has chosen for Group. Group breaks; if Group
	// is the group of all ranks, all groups break. The rank must send an Ack once it can no longer
	// report a call of a broken group as successful.
	Failed
	// Settled says that all ranks have acknowledged the message with this Number. That message is
	// Failed or, if Settled has Alone, the Leaving that announced the receiver of Settled.
	Settled
	// Left says that all members have left Group. Alone says that at least one member did not wait
	// for the others.
	Left
	// Leaving says that Ranks leave Group without waiting for the others. Values are their
	// progress, from Leave. A rank that receives Leaving must send an Ack once its own progress
	// reaches these Values.
	Leaving
	// Queried answers Query: Ranks are the members that have not sent a Gather with Key.
	Queried
	// Posted answers Post. Values are the posted values of the Ranks in that Post. The value of a
	// rank that has posted nothing is empty.
	Posted
	// Alive says that the sender runs. Both ends send it.
	Alive
)

var verbs = map[Verb]string{
	Join: "join", Gather: "gather", Fail: "fail", Ack: "ack", Leave: "leave", Query: "query", Post: "post", Gathered: "gathered", Asked: "asked",
	Answered: "answered", Failed: "failed", Settled: "settled", Left: "left", Leaving: "leaving", Queried: "queried", Posted: "posted", Alive: "alive",
}

func (v Verb) String() string { return verbs[v] }

// A Message is a message between a rank and the coordinator. The Verb determines which fields
// are used. Ranks are numbers in the job, not in a group.
type Message struct {
	Verb   Verb
	Number uint64   `json:",omitempty"`
	Group  string   `json:",omitempty"` // "" is the group of all ranks
	Key    string   `json:",omitempty"`
	Ranks  []int    `json:",omitempty"`
	Value  []byte   `json:",omitempty"`
	Values [][]byte `json:",omitempty"`

	Session  int      `json:",omitempty"` // Join: the number of the session
	Process  string   `json:",omitempty"` // Join: a description of the process, which identifies it
	Options  []Option `json:",omitempty"` // Join: the rank's settings
	Isolated bool     `json:",omitempty"` // Join: the failure of a group does not break other groups

	Failure     *Failure `json:",omitempty"`
	WantAnswers bool     `json:",omitempty"` // used in Fail and Asked
	Final       bool     `json:",omitempty"` // used in Fail and Leave
	Alone       bool     `json:",omitempty"` // used in Leave, Left and Settled
}

// An Option is a setting that must be equal on all ranks.
type Option struct{ Name, Value string }

// A Kind is the kind of a failure.
type Kind string

// The kinds of failures.
const (
	Reported  Kind = ""          // Reporter reported the failure; Detail describes it
	Lost      Kind = "lost"      // the connections of Ranks ended without a Leave
	Departed  Kind = "departed"  // Ranks left while Reporter still needed them
	Exited    Kind = "exited"    // the processes of Ranks ended before they joined
	Duplicate Kind = "duplicate" // two processes joined as the rank in Ranks
	Different Kind = "different" // the options of Ranks differ
	// Unreachable says that the coordinator has ended or is silent. The rank itself, not the
	// coordinator, makes this failure.
	Unreachable Kind = "unreachable"
)

// A Failure says why a group broke.
type Failure struct {
	Kind     Kind   `json:",omitempty"`
	Reporter int    // the rank that reported this failure; -1: the coordinator noticed it
	Group    string `json:",omitempty"`
	Ranks    []int  `json:",omitempty"` // the ranks at fault
	Text     string `json:",omitempty"`
	// Detail is the reporter's own description. The coordinator does not interpret it.
	Detail []byte `json:",omitempty"`
	// Key is the key of the Gather that the reporter waited for. The coordinator sets Absent to
	// the members that have not sent this Gather.
	Key    string `json:",omitempty"`
	Absent []int  `json:",omitempty"`
	Late   bool   `json:",omitempty"` // the reporter's timeout passed
	// Confined says that the failure breaks Group alone, because the program aborted that group.
	Confined bool `json:",omitempty"`
}

// nobody is the value of Failure.Reporter if the coordinator itself noticed the failure.
const nobody = -1

func (e *Failure) Error() string {
	switch e.Kind {
	case Lost:
		return fmt.Sprintf("rank %d lost: %s", e.Ranks[0], e.Text)
	case Departed:
		return fmt.Sprintf("ranks %v left: they closed the process group", e.Ranks)
	case Exited:
		return fmt.Sprintf("rank %d has ended before it joined: %s", e.Ranks[0], e.Text)
	case Duplicate:
		return fmt.Sprintf("two processes say that they are rank %d: %s: they are of two jobs, or one was started twice: %s", e.Ranks[0], e.Text, handshake.Remedy)
	case Unreachable, Different:
		return e.Text
	}
	if len(e.Absent) > 0 {
		return fmt.Sprintf("%s: ranks %v have not come", e.Text, e.Absent)
	}
	return e.Text
}
