package watchdog

import "fmt"

// Mode is what a failure leads to.
type Mode uint8

// The modes.
const (
	Default  Mode = iota // what the environment says, else Async
	Async                // the process ends
	CleanUp              // the groups break, the process lives
	None                 // a log line
	Blocking             // as CleanUp, and Wait blocks until then
)

func (m Mode) String() string {
	return [...]string{"default", "async", "clean-up", "none", "blocking"}[m]
}

// Event is something that happened.
type Event uint8

// The events.
const (
	Overdue  Event = iota // a call's deadline passed
	Broke                 // the backend broke a group by itself, or because a peer's did
	Told                  // another rank announced that a call failed there
	Gathered              // all records that the announcement asked for came, or will not
	Waited                // the group did not break in the time that the announcing rank has
	Leave                 // the program itself closes the group, or aborts it
)

func (e Event) String() string {
	return [...]string{"overdue", "broke", "told", "gathered", "waited", "leave"}[e]
}

// Action is something to do.
type Action uint8

// The actions.
const (
	Say      Action = iota // log what happened
	Announce               // tell the other ranks, and say who was first
	Gather                 // ask for their records; Gathered or Broke follows
	Record                 // write down this rank's flight record
	Report                 // write the error file, for the launcher
	Publish                // give this rank's record to who asked for it
	Await                  // wait for the group to break; Broke or Waited follows
	Abort                  // break the groups, with the cause
	End                    // run the shutdown hooks, then end the process
)

func (a Action) String() string {
	return [...]string{"say", "announce", "gather", "record", "report", "publish", "await", "abort", "end"}[a]
}

// Core is the state of one rank. Its zero value, but for Mode, is a rank that
// watches.
type Core struct {
	Mode  Mode // not Default
	state state
}

type state uint8

const (
	watching  state = iota
	gathering       // of a failure found here
	awaiting        // told of a failure elsewhere
	over            // acted
	left            // the program ended the group itself
)

// Over tells that the rank has acted on a failure, or left: nothing that comes
// matters any more.
func (c *Core) Over() bool { return c.state >= over }

// Step takes an event and returns what to do, in order.
func (c *Core) Step(e Event) []Action {
	if c.Over() {
		return nil
	}
	if e == Leave {
		c.state = left
		return nil
	}
	if c.Mode == None {
		if e == Overdue || e == Broke {
			return []Action{Say}
		}
		return nil
	}
	switch c.state {
	case watching:
		switch e {
		case Overdue:
			c.state = gathering
			return []Action{Say, Announce, Gather}
		case Broke:
			return c.act(Say, Announce, Record, Report, Abort)
		case Told:
			c.state = awaiting
			return []Action{Record, Publish, Await}
		}
	case gathering:
		switch e {
		case Gathered, Broke:
			return c.act(Say, Record, Report, Abort)
		case Overdue, Told: // of the same failure
			return nil
		}
	case awaiting:
		switch e {
		case Broke, Waited:
			return c.act(Say, Report, Abort)
		case Overdue, Told:
			return nil
		}
	}
	panic(fmt.Errorf("watchdog: %v in state %d", e, c.state))
}

// act is what the failure leads to.
func (c *Core) act(first ...Action) []Action {
	c.state = over
	if c.Mode == Async {
		return append(first, End)
	}
	return first
}
