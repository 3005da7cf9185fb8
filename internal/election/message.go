package election

// maxMessage bounds the size of a message between golaunch and golaunch-etcd in bytes.
const maxMessage = 1 << 20

// request is a message to golaunch-etcd. One field is set. Each request has one response, and no request is
// made before the response to the one before.
type request struct {
	Open   *Options
	Elect  *electRequest
	Save   *State
	Resign *resignRequest
}

type electRequest struct{ Addr, Dead string }

type resignRequest struct{ Ended bool }

// response is a message of golaunch-etcd.
type response struct {
	Error  string
	IsOver bool // Error is that of ErrOver

	Host    string // to Elect: the address of the elected agent
	Elected bool   // to Elect: this agent is elected
	State   State  // if Elected
	Expired bool   // no response: the term is over
}
