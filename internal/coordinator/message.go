package coordinator

import (
	"fmt"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/rootcause"
)

// A Verb is the type of a message.
type Verb uint8

// The messages that ranks send.
const (
	// Join is a rank's first message. It holds the rank's Process, the Options that must be
	// equal on all ranks, and a Value for the other ranks.
	Join Verb = iota + 1
	// Gather gives a rank's Value of Key to the members of Group. The first Gather of a group has
	// the key JoinKey, and its Ranks are the members. The group of all ranks needs no such Gather.
	Gather
	// Fail reports a Failure. Ranks are the ranks that the coordinator asks about it.
	//
	// Without WantAnswers and Final, the coordinator decides when all Ranks have answered.
	//
	// With WantAnswers, the coordinator sends the answers to the reporter, as Answered, when all
	// Ranks have answered. The reporter then decides: it sends a Fail with Final. To get the
	// answers so far, the reporter sends the Fail with WantAnswers a second time.
	//
	// With Final, the coordinator chooses the Failure at once. There is one exception: if the
	// coordinator is busy with the report of another rank, it ignores a rank's first Fail with
	// Final and obeys the second one, because the other rank may be suspended.
	Fail
	// Ack acknowledges the message Failed or Leaving with the same Number, or answers the message
	// Asked with the same Number. Value is the answer.
	Ack
	// Leave says that the rank leaves Group, and that this is not a failure. With Alone, the rank does
	// not wait until the other members leave too. Value is then the rank's progress, for example
	// its number of calls on Group. The coordinator does not interpret Value. With Final, the
	// rank leaves the session: the end of its connection is then no failure. Group is then the
	// group of all ranks.
	Leave
	// Query asks which members a gather still waits for: the members of Group that have not sent a
	// Gather with Key. The answer, Queried, has the same Number.
	Query
	// Post stores Value as the rank's value of Key in Group, if Value is not empty, and asks
	// for the values that Ranks have posted. A Post without Value and Ranks withdraws the rank's value.
	// The answer, Posted, has the same Number. It is sent when all Ranks have posted a value. With Final,
	// the rank no longer waits for the answer with this Number, and none is sent.
	Post
	// Enter says that a worker of an elastic job waits for the next epoch. Ready says from where it comes.
	// The answer is Begun or Released. The first one is followed by a Join.
	Enter
)

// The messages that the coordinator sends.
const (
	// Gathered holds the Values of Key, in the order of the members. Values is nil if all values
	// are empty.
	Gathered Verb = iota + 16
	// Asked asks a rank about the Failure that another rank reported. The rank must send an Ack.
	// With WantAnswers, the Ack holds what the rank knows about Failure. Without WantAnswers, the
	// Ack is empty: the coordinator only needs to know that the rank still runs.
	Asked
	// Answered is sent to the reporter of a Fail with WantAnswers. Ranks are the asked ranks whose
	// answers the coordinator has. Values are their answers, in the order of Ranks. The answer of
	// a rank that has left or is lost is empty.
	Answered
	// Failed holds the Failure that the coordinator has chosen for Group. Group breaks. If Group
	// is the group of all ranks, all groups break. The receiver first makes sure that no call of a
	// broken group returns success any more. Then the receiver must send an Ack.
	Failed
	// Settled says that the coordinator no longer waits for any Ack of the message with this
	// Number. If Alone is not set, that message is a Failed. If Alone is set, that message is the
	// Leaving by which the coordinator announced that the receiver of Settled leaves. The receiver
	// may now leave.
	Settled
	// Left says that all members have left Group. Alone says that at least one member did not wait
	// for the others.
	Left
	// Leaving says that Ranks leave Group without waiting for the others. Values are the progress
	// of these ranks, such as the number of their calls, which they gave in their messages Leave. A
	// rank that receives Leaving must send an Ack once its own progress has reached all of these Values.
	Leaving
	// Queried answers Query. Ranks are the members that have not sent a Gather with Key. Ranks is
	// empty if no member has sent one, or if all members have. If Key is LeaveKey, Ranks are the
	// members that have not left.
	Queried
	// Posted answers Post. Values are the posted values of the Ranks in that Post: of the first ones, if
	// those of all are too large for one message. If some of these Ranks have left or are lost, and have
	// posted no value, Ranks are those ranks, and there are no Values.
	Posted
	// Begun says that an epoch has begun. Order lists its members, of which the receiver is Rank.
	Begun
	// Released says that a worker shall end, as it wished.
	Released
	// Alive says that the sender runs. Both ends send it.
	Alive
)

var verbs = map[Verb]string{
	Join: "join", Gather: "gather", Fail: "fail", Ack: "ack", Leave: "leave", Query: "query", Post: "post", Enter: "enter", Gathered: "gathered", Asked: "asked",
	Answered: "answered", Failed: "failed", Settled: "settled", Left: "left", Leaving: "leaving", Queried: "queried", Posted: "posted", Begun: "begun", Released: "released", Alive: "alive",
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

	Session int      `json:",omitempty"` // Join: the number of the session
	Process string   `json:",omitempty"` // Join: a description of the process, which identifies it
	Options []Option `json:",omitempty"` // Join: the rank's settings
	// Isolated, in Join: a failure that a rank reports in a subgroup breaks only that subgroup. A failure
	// in the group of all ranks still breaks all groups.
	Isolated bool `json:",omitempty"`

	Ready *Ready `json:",omitempty"` // see Enter
	Order *Order `json:",omitempty"` // see Begun
	Rank  int    `json:",omitempty"` // see Begun

	Failure *Failure `json:",omitempty"`
	// WantAnswers, in Fail: the coordinator collects an answer from each of Ranks and sends them to the
	// reporter, and the reporter decides what the failure is. In Asked: the Ack must hold an answer.
	WantAnswers bool `json:",omitempty"`
	Final       bool `json:",omitempty"` // see Fail, Leave and Post
	Alone       bool `json:",omitempty"` // see Leave, Left and Settled
}

// An Option is a setting that must be equal on all ranks.
type Option struct{ Name, Value string }

// A Kind is the kind of a failure.
type Kind string

// The kinds of failures.
const (
	Reported  Kind = ""          // the rank Reporter reported the failure; Text and Detail describe it
	Lost      Kind = "lost"      // the connections of Ranks ended without a Leave
	Departed  Kind = "departed"  // Ranks left while the rank Reporter still needed them
	Exited    Kind = "exited"    // the processes of Ranks ended before they joined
	Duplicate Kind = "duplicate" // two processes joined as the rank in Ranks
	Different Kind = "different" // the options of Ranks differ, or Ranks are not numbers of this job
	Changed   Kind = "changed"   // a worker joins or leaves an elastic job, so that its members must enter the next epoch
	// Unreachable says that the coordinator has ended or is silent. The coordinator cannot send this
	// failure: each rank makes its own.
	Unreachable Kind = "unreachable"
)

// A Failure says why a group broke.
type Failure struct {
	Kind     Kind   `json:",omitempty"`
	Reporter int    // the rank that reported this failure; -1: the coordinator noticed it
	Group    string `json:",omitempty"`
	Ranks    []int  `json:",omitempty"` // the ranks at fault
	Text     string `json:",omitempty"`
	// Detail is a further description by the reporter. The coordinator does not interpret it.
	Detail []byte `json:",omitempty"`
	// Key is the key of the Gather that the reporter waited for. The coordinator sets Absent to
	// the members that have not sent this Gather.
	Key    string `json:",omitempty"`
	Absent []int  `json:",omitempty"`
	Late   bool   `json:",omitempty"` // the reporter's timeout passed
	// Confined says that the failure breaks only Group, because the program aborted or closed Group.
	Confined bool `json:",omitempty"`
}

// nobody is the value of Failure.Reporter if the coordinator itself noticed the failure.
const nobody = -1

func (e *Failure) Error() string {
	switch e.Kind {
	case Lost:
		return fmt.Sprintf("rank %d lost: %s", e.Ranks[0], e.Text)
	case Departed:
		return rootcause.Ranks(e.Ranks) + " closed the process group"
	case Exited:
		return fmt.Sprintf("rank %d ended before it joined: %s", e.Ranks[0], e.Text)
	case Duplicate:
		return fmt.Sprintf("two processes say that they are rank %d: %s: they are of two jobs, or one was started twice: %s", e.Ranks[0], e.Text, handshake.Remedy)
	case Unreachable, Different, Changed:
		return e.Text
	}
	if len(e.Absent) > 0 {
		return fmt.Sprintf("%s, waiting for %s", e.Text, rootcause.Ranks(e.Absent))
	}
	return e.Text
}
