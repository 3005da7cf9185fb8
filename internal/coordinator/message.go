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
	// Gather gives a rank's Value of Key to the members of Group. The first Gather of a group
	// from Split names the members in Ranks.
	Gather
	// Fail reports a Failure. The coordinator decides it when Ranks have answered. With
	// WantAnswers, the coordinator sends the answers to the reporter, by Answered, and the
	// reporter decides by a Fail that is Final. If the reporter does not want to wait for all
	// answers, it sends the Fail with WantAnswers again and gets the answers so far. If another
	// rank's report has replaced the reporter's own, the second Fail that is Final decides.
	Fail
	// Ack acknowledges or answers the message Asked, Failed or Leaving with the same Number.
	// Value is the answer.
	Ack
	// Leave says that the rank closes Group without a failure. Value says how far the rank has
	// come. With Alone the rank no longer waits for the others. Final, in the group of all
	// ranks, says that the rank leaves the session, so that the end of its connection is no
	// failure.
	Leave
	// Query asks which members of Group have not given their value of Key. The answer has its Number.
	Query
	// Post stores Value as the rank's value of Key in Group, if Value is not empty, and asks
	// for the values that Ranks have posted. The answer has the same Number.
	Post
)

// The messages that the coordinator sends.
const (
	// Gathered holds the Values of Key, in the order of the members. It holds none if all are
	// empty.
	Gathered Verb = iota + 16
	// Asked asks what the rank knows about Failure. The rank must answer by an Ack.
	Asked
	// Answered holds the answers to a Fail with WantAnswers: Values are the answers of Ranks.
	// The answer of a rank that has left is empty.
	Answered
	// Failed holds a failure that was decided. Group breaks; if Group is the group of all ranks,
	// all groups break. The rank must send an Ack once it can no longer report a call of a
	// broken group as successful.
	Failed
	// Settled says that all ranks have acknowledged the message with this Number: the failure
	// of Group or, with Alone, that this rank leaves Group.
	Settled
	// Left says that all members have left Group. Alone says that one of them did not wait.
	Left
	// Leaving says that Ranks leave Group alone. Values say how far they have come. The rank
	// must send an Ack once it has come as far.
	Leaving
	// Queried answers Query: Ranks have not given their value.
	Queried
	// Posted answers Post. Values are those of its Ranks; the value of a rank that posted none
	// is empty.
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
// are used. Messages number ranks as the job does.
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
	Options  []Option `json:",omitempty"` // Join
	Isolated bool     `json:",omitempty"` // Join: a group's failure does not break the others

	Failure     *Failure `json:",omitempty"`
	WantAnswers bool     `json:",omitempty"` // Fail, Asked
	Final       bool     `json:",omitempty"` // Fail, Leave
	Alone       bool     `json:",omitempty"` // Leave, Left
}

// An Option is a setting that must be equal on all ranks.
type Option struct{ Name, Value string }

// A Kind says how a failure was found.
type Kind string

// The kinds of failures.
const (
	Reported  Kind = ""          // Reporter reported it; Detail describes it
	Lost      Kind = "lost"      // the connections of Ranks ended without a Leave
	Departed  Kind = "departed"  // Ranks left while Reporter needed them
	Exited    Kind = "exited"    // the processes of Ranks ended before they joined
	Duplicate Kind = "duplicate" // two processes joined as the rank in Ranks
	Different Kind = "different" // the options of Ranks differ
	// Unreachable is found by a rank: the coordinator has ended or is silent.
	Unreachable Kind = "unreachable"
)

// A Failure says why a group broke.
type Failure struct {
	Kind     Kind   `json:",omitempty"`
	Reporter int    // the rank that reported it; -1: the coordinator noticed it
	Group    string `json:",omitempty"`
	Ranks    []int  `json:",omitempty"` // the ranks at fault
	Text     string `json:",omitempty"`
	// Detail is the reporter's own description. The coordinator does not interpret it.
	Detail []byte `json:",omitempty"`
	// Key is the gather that the reporter waited for. The coordinator sets Absent to the
	// members that have not given their value of Key.
	Key    string `json:",omitempty"`
	Absent []int  `json:",omitempty"`
	Late   bool   `json:",omitempty"` // the reporter's timeout passed
	// Confined says that the failure breaks Group alone, because the program aborted it.
	Confined bool `json:",omitempty"`
}

// nobody is the Reporter of a failure that the coordinator itself noticed.
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
