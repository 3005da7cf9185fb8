package store

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/handshake"
)

// A Job is what the processes of one job agree on: see [Member].
type Job = handshake.Job

// A Member is a process of a job, as it introduces itself: a client to a server of ours,
// and that server to its clients. Each end compares the other's Job with its own and
// makes sure, by a proof that cannot be used a second time, that the other has the same
// Secret. The secret itself is not sent.
type Member struct {
	Job    Job
	Rank   int    // in the job; -1: none, as of a launcher
	Secret []byte // of the job; nil: it has none
	// Insecure trusts the network and every user of it. A server serves anybody; a
	// client without a secret takes a server of another user.
	Insecure bool
}

func (m *Member) party(role handshake.Role) handshake.Party {
	return handshake.Party{Role: role, Job: m.Job, HasSecret: m.Secret != nil, Rank: m.Rank, Process: handshake.ThisProcess()}
}

// A HandshakeError says that a client and the server that it dialled must not talk: they
// are of two jobs, they have not got one secret, the server is of another user or has no
// room for another connection, or it is no server of ours where it has to be. Trying
// again does not help.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string { return e.Err.Error() }

func (e *HandshakeError) Unwrap() error { return e.Err }

// errPyTorchStore is the error of a client that found a store of PyTorch's, or of a program
// that speaks its protocol.
var errPyTorchStore = errors.New("the store there is not goddp's, and this job's has to be: another program has the port")

// ErrExposed is in the error of a server that would have to serve other hosts without
// knowing whom.
var ErrExposed = errors.New("other hosts can reach this address, and the job has no secret by which to know its own processes: " +
	"name a file with one in " + handshake.TokenFileVar + ", the same for all processes of the job, or, where the whole network is trusted, set " +
	handshake.InsecureVar + "=1")

// handshakeKey is the key of the requests that carry a handshake. No caller's key is
// that: theirs begin with a slash.
const handshakeKey = "goddp/handshake"

// handshakeRequest carries a message of a client's. A server of ours answers with its
// own message; any other, which has no such key, with what it was sent, and it stores
// nothing.
func handshakeRequest(m []byte) request {
	return request{op: opCompareSet, keys: []string{handshakeKey}, values: [][]byte{m, m}}
}

// errNoMember is why a connection was not served that came without a handshake.
func errNoMember(why error) error {
	return fmt.Errorf("a client that is not known to be of the same user and does not show the job's secret (%s; %s=1 serves anybody): %w",
		handshake.TokenFileVar, handshake.InsecureVar, why)
}
