package watchdog

// Mode says what happens after a call has failed.
type Mode uint8

// The modes.
const (
	Default  Mode = iota // environment variables set the mode; if none is set, the mode is Async
	Async                // the process ends
	CleanUp              // the groups break, but the process continues
	None                 // the failure is only logged
	Blocking             // the same as CleanUp, except that Wait blocks until the call is done or has failed
)

func (m Mode) String() string {
	return [...]string{"default", "async", "clean-up", "none", "blocking"}[m]
}

// Event is an input of Core.
type Event uint8

// The events.
const (
	Overdue Event = iota // a call's deadline passed
	Broke                // a call failed, or the coordinator has decided on a failure, so a group is broken
	Leave                // the program closes the group
)

func (e Event) String() string {
	return [...]string{"overdue", "broke", "leave"}[e]
}

// Action is an output of Core, which the caller of Step must perform.
type Action uint8

// The actions.
const (
	Log     Action = iota // log the event
	Inquire               // ask the other ranks for their calls, then let the coordinator decide on the cause; the event Broke follows
	Record                // write this rank's flight record
	Report                // write the error file, for the launcher
	End                   // run the shutdown hooks, then end the process
)

func (a Action) String() string {
	return [...]string{"log", "inquire", "record", "report", "end"}[a]
}

// Core is the state of one rank's watchdog. Apart from Mode, the zero value is the initial
// state.
type Core struct {
	Mode  Mode // must not be Default
	state state
}

type state uint8

const (
	watching  state = iota // no call is overdue, and no group has broken
	inquiring              // a call is overdue, and the rank is querying the other ranks
	acted                  // the rank has returned the actions for a failure
	left                   // the program has closed the group
)

// Ended reports whether the rank has acted on a failure or has closed the group. From then on
// Step ignores all events.
func (c *Core) Ended() bool { return c.state >= acted }

// Step takes an event and returns the actions that the caller must carry out, in order.
func (c *Core) Step(e Event) []Action {
	switch {
	case c.Ended():
		return nil
	case e == Leave:
		c.state = left
		return nil
	case c.Mode == None:
		return []Action{Log}
	case e == Overdue && c.state == inquiring: // one inquiry covers all overdue calls
		return nil
	case e == Overdue:
		c.state = inquiring
		return []Action{Log, Inquire}
	}
	c.state = acted
	actions := []Action{Log, Record, Report}
	if c.Mode == Async {
		actions = append(actions, End)
	}
	return actions
}
