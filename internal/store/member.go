package store

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
)

// A Member identifies a process of a job in the handshake between a client and a server.
// Each end compares the other's Job with its own. Each end also verifies that the other
// knows the same Secret, by a proof that cannot be replayed. The secret itself is not sent.
type Member struct {
	Job    handshake.Job
	Rank   int    // the rank in the job; -1 for a process without a rank, such as a launcher
	Secret []byte // the job's secret; nil if it has none
	// Insecure trusts the network and all its users. A server then serves every client.
	// A client without a secret then accepts a server of another user.
	Insecure bool
}

func (m *Member) party(role handshake.Role) handshake.Party {
	return handshake.Party{Role: role, Job: m.Job, HasSecret: m.Secret != nil, Rank: m.Rank, Process: handshake.ThisProcess()}
}

// A HandshakeError says that the handshake between a client and a server failed. They
// belong to different jobs or have different secrets, the server belongs to another user or
// has no free connection, or it knows no handshake although it has to. Retrying does not
// help.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string { return e.Err.Error() }

func (e *HandshakeError) Unwrap() error { return e.Err }

// errPyTorchStore is the error of a client that found a server without a handshake:
// PyTorch's store, or another program that speaks its protocol.
var errPyTorchStore = errors.New("the store there is not goddp's, and this job's has to be: another program has the port")

// ErrExposed is in the error of Listen if other hosts can reach the address, and the server
// could not authenticate them.
var ErrExposed = errors.New("other hosts can reach this address, and the job has no secret by which to know its own processes: " +
	"name a file with one in " + jobenv.TokenFileVar + ", the same for all processes of the job, or, where the whole network is trusted, set " +
	jobenv.InsecureVar + "=1")

// handshakeKey is the key of the requests that carry a handshake. It differs from all keys
// of callers, because those begin with a slash.
const handshakeKey = "goddp/handshake"

// handshakeRequest returns the request that carries message m of a client's handshake. A
// server of this package answers with its own message. Any other server does not have the
// key, so it stores nothing and returns m.
func handshakeRequest(m []byte) request {
	return request{op: opCompareSet, keys: []string{handshakeKey}, values: [][]byte{m, m}}
}

// errNoMember returns the error for a client that is not served because it has not proved
// that it belongs to the job. why says why it needs this proof.
func errNoMember(why error) error {
	return fmt.Errorf("a client that is not known to be of the same user and does not show the job's secret (%s; %s=1 serves anybody): %w",
		jobenv.TokenFileVar, jobenv.InsecureVar, why)
}
