package coordinator

import (
	"fmt"

	"github.com/goddp/goddp/internal/handshake"
)

// A Verb says what a message is.
type Verb uint8

// What a rank says.
const (
	// Join is a rank's first message: its Process, the Options that all ranks must have
	// alike, and a Value for the others.
	Join Verb = iota + 1
	// Gather gives a rank's Value of Key to the members of Group. The first one of a group
	// from Split names its members in Ranks.
	Gather
	// Fail reports a Failure. Ranks are to answer before it is decided; with WantAnswers,
	// Answered brings their answers and the reporter decides by a Fail that is Final. A
	// reporter that waits no longer says it again: Answered brings the answers so far. A
	// rank whose report gave way to another one's decides by its second Fail that is Final.
	Fail
	// Ack answers Asked, Failed or Leaving, by its Number. Its Value is the answer.
	Ack
	// Leave says that the rank closes Group in good order: Value is how far it has come.
	// With Alone it does not wait for the others any longer. Final, of the group of all, says
	// that it leaves the session: the end of its connection is no failure any more.
	Leave
	// Watch asks which members of Group have not given their value of Key. The answer has its Number.
	Watch
	// Post replaces what the rank has posted of Key in Group by its Value, if it has one, and
	// asks what Ranks have posted. The answer has its Number.
	Post
)

// What the coordinator says.
const (
	// Gathered has the Values of Key, by member; none where no member gave any.
	Gathered Verb = iota + 16
	// Asked wants an Ack that says what the rank knows about Failure.
	Asked
	// Answered has the answers to a Fail with WantAnswers: Values of Ranks. That of a rank
	// that left is empty.
	Answered
	// Failed is a failure that was decided: Group breaks, and all groups if that is the
	// one of all ranks. The rank must Ack it once nothing that it reports can miss it.
	Failed
	// Settled says that all ranks have acknowledged what has Number: the failure of Group
	// or, with Alone, that this rank leaves it.
	Settled
	// Left says that all members have left Group; Alone, that one of them did not wait.
	Left
	// Leaving says that Ranks leave Group alone, at Values. The rank must Ack it once it
	// has come as far.
	Leaving
	// Watched answers Watch: Ranks have not given their value.
	Watched
	// Posted answers Post: Values are those of its Ranks, empty where a rank posted none.
	Posted
	// Alive says nothing but that the sender runs. It goes both ways.
	Alive
)

var verbs = map[Verb]string{
	Join: "join", Gather: "gather", Fail: "fail", Ack: "ack", Leave: "leave", Watch: "watch", Post: "post", Gathered: "gathered", Asked: "asked",
	Answered: "answered", Failed: "failed", Settled: "settled", Left: "left", Leaving: "leaving", Watched: "watched", Posted: "posted", Alive: "alive",
}

func (v Verb) String() string { return verbs[v] }

// A Message is what a rank and the coordinator say to each other. Which fields count, its
// Verb says. Ranks are the job's.
type Message struct {
	Verb   Verb
	Number uint64   `json:",omitempty"`
	Group  string   `json:",omitempty"` // "" is the group of all ranks
	Key    string   `json:",omitempty"`
	Ranks  []int    `json:",omitempty"`
	Value  []byte   `json:",omitempty"`
	Values [][]byte `json:",omitempty"`

	Session int      `json:",omitempty"` // Join: which of the job's sessions
	Process string   `json:",omitempty"` // Join: the process, for people and to tell it from others
	Options []Option `json:",omitempty"` // Join
	Apart   bool     `json:",omitempty"` // Join: a group's failure does not break the others

	Failure     *Failure `json:",omitempty"`
	WantAnswers bool     `json:",omitempty"` // Fail, Asked
	Final       bool     `json:",omitempty"` // Fail, Leave
	Alone       bool     `json:",omitempty"` // Leave, Left
}

// An Option is something that all ranks must have alike.
type Option struct{ Name, Value string }

// A Kind says what the coordinator itself found.
type Kind string

// The kinds of failures.
const (
	Reported  Kind = ""          // by Reporter, in Detail
	Lost      Kind = "lost"      // Ranks: their connections ended without a Leave
	Departed  Kind = "departed"  // Ranks left, and Reporter needs them
	Exited    Kind = "exited"    // Ranks: their processes ended before they joined
	Duplicate Kind = "duplicate" // Ranks: two processes joined as this rank
	Different Kind = "different" // Ranks: their options differ
	// Unreachable is found by a rank: the coordinator is gone, or silent.
	Unreachable Kind = "unreachable"
)

// A Failure is why a group broke.
type Failure struct {
	Kind     Kind   `json:",omitempty"`
	Reporter int    // the rank that reported it; -1: the coordinator noticed it
	Group    string `json:",omitempty"`
	Ranks    []int  `json:",omitempty"` // whom it names
	Text     string `json:",omitempty"`
	// Detail is the reporter's own description, which the coordinator does not look at.
	Detail []byte `json:",omitempty"`
	// Key is the gather that the reporter waited for, and Absent, which the coordinator
	// fills in, the members that have not given their value.
	Key    string `json:",omitempty"`
	Absent []int  `json:",omitempty"`
	Late   bool   `json:",omitempty"` // the reporter's time was over
	// Confined has the failure break Group alone: the program of the reporter wants that.
	Confined bool `json:",omitempty"`
}

// nobody is the Reporter of what the coordinator noticed.
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
