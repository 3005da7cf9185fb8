package store

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
)

// A Member identifies a process of a job in the handshake between a client and a server. Each end
// compares the other's Job with its own, and verifies that the other knows the same Secret, with a
// proof that cannot be replayed. The secret itself is not sent.
type Member struct {
	Job    handshake.Job
	Rank   int    // the rank in the job; -1 for a process without a rank, such as a launcher
	Secret []byte // the job's secret; nil if it has none
	// Insecure trusts the network and all its users: a server serves every client, and a client
	// without a secret accepts a server of another user.
	Insecure bool
}

func (m *Member) party(role handshake.Role) handshake.Party {
	return handshake.Party{Role: role, Job: m.Job, HasSecret: m.Secret != nil, Rank: m.Rank, Process: handshake.ThisProcess()}
}

// A HandshakeError says that the handshake between a client and a server failed. They belong to
// different jobs or have different secrets, or the server belongs to another user, has no free
// connection, or lacks the required handshake. Retrying does not help.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string { return e.Err.Error() }

func (e *HandshakeError) Unwrap() error { return e.Err }

// errPyTorchStore is the error of a client that found a server without a handshake:
// PyTorch's store, or another program that speaks its protocol.
var errPyTorchStore = errors.New("the store at this address is not a goddp store, which this job requires: another program uses the port")

// ErrExposed is in the error of Listen if other hosts can reach the address, and the server
// could not authenticate them.
var ErrExposed = errors.New("other hosts can reach this address, and the job has no secret to authenticate its processes: " +
	"name a file with one in " + jobenv.TokenFileVar + ", the same for all processes of the job, or, where the whole network is trusted, set " +
	jobenv.InsecureVar + "=1")

// handshakeKey is the key of the requests that carry a handshake. It differs from all keys of
// callers, which start with a slash.
const handshakeKey = "goddp/handshake"

// handshakeRequest returns the request that carries message m of a client's handshake. A
// server of this package answers with its own message. Any other server does not have the
// key, so it stores nothing and returns m.
func handshakeRequest(m []byte) request {
	return request{op: opCompareSet, keys: []string{handshakeKey}, values: [][]byte{m, m}}
}

// errNoMember returns the error for a client that is rejected because it is not authenticated. why
// says why authentication is required.
func errNoMember(why error) error {
	return fmt.Errorf("the client does not know the job's secret (%s), and is not known to run as the same user (%s=1 turns this check off): %w",
		jobenv.TokenFileVar, jobenv.InsecureVar, why)
}
