package election

import "time"

// maxMessage bounds the size of a message between golaunch and golaunch-etcd in bytes.
const maxMessage = 1 << 20

// request is a message to golaunch-etcd. One field is set. Each request except a heartbeat has one response, and
// the next request is sent only after this response. Heartbeats are sent at any time.
type request struct {
	Beat   bool // a heartbeat of golaunch, which golaunch-etcd returns
	Open   *Options
	Elect  *electRequest
	Save   *State
	Resign *resignRequest
}

type electRequest struct{ Addr, Dead string }

type resignRequest struct{ Ended bool }

// response is a message of golaunch-etcd.
type response struct {
	Beat bool // not a response to a request: a heartbeat

	Error    string
	IsOver   bool // Error is the text of ErrOver
	JobEnded bool // Error is the text of ErrJobEnded

	Host    string // in the response to Elect: the address of the elected agent
	Elected bool   // in the response to Elect: whether this agent is elected
	State   State  // if Elected: the progress of the job
	Expired bool   // not a response to a request: the term of this agent has ended
}

// silenceLimit returns how long golaunch and golaunch-etcd may be silent to each other while this agent is
// elected. Each sends beatsPerLimit heartbeats in that time.
func silenceLimit(o *Options) time.Duration { return max(o.TTL, time.Second) }

const beatsPerLimit = 3
