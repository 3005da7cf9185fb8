package watchdog

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
	Overdue Event = iota // a call's deadline passed
	Broke                // a group broke, as the coordinator decided
	Leave                // the program itself closes the group
)

func (e Event) String() string {
	return [...]string{"overdue", "broke", "leave"}[e]
}

// Action is something to do.
type Action uint8

// The actions.
const (
	Say     Action = iota // log what happened
	Inquire               // ask the other ranks what they do, and have it decided; Broke follows
	Record                // write down this rank's flight record
	Report                // write the error file, for the launcher
	End                   // run the shutdown hooks, then end the process
)

func (a Action) String() string {
	return [...]string{"say", "inquire", "record", "report", "end"}[a]
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
	inquiring       // about a deadline
	acted           // acted
	left            // the program ended the group itself
)

// Over tells that the rank has acted on a failure, or left: nothing that comes
// matters any more.
func (c *Core) Over() bool { return c.state >= acted }

// Step takes an event and returns what to do, in order.
func (c *Core) Step(e Event) []Action {
	switch {
	case c.Over():
		return nil
	case e == Leave:
		c.state = left
		return nil
	case c.Mode == None:
		return []Action{Say}
	case e == Overdue && c.state == inquiring: // of the same failure
		return nil
	case e == Overdue:
		c.state = inquiring
		return []Action{Say, Inquire}
	}
	c.state = acted
	actions := []Action{Say, Record, Report}
	if c.Mode == Async {
		actions = append(actions, End)
	}
	return actions
}
