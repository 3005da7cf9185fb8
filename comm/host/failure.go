package host

import (
	"errors"

	"github.com/goddp/goddp/comm/backend"
)

// fromPeer is the cause for which this rank's group broke, as another rank
// that broke for it tells it on. A failed call, a lost rank and an abort that
// was told name the ranks concerned already.
func fromPeer(from int, cause error) error {
	var call *backend.CallError
	var lost *backend.PeerLostError
	var aborted *backend.AbortedError
	switch {
	case errors.As(cause, &call):
		return call
	case errors.As(cause, &lost):
		return lost
	case errors.As(cause, &aborted):
		return aborted
	}
	return &backend.AbortedError{By: from, Err: cause}
}

// matchSend compares a Recv with the Send that meets it.
func matchSend(rank int, recv *backend.Call, send backend.Fingerprint) error {
	mine := recv.Fingerprint()
	if send.Kind == backend.Send && send.DType == mine.DType && send.Count == mine.Count {
		return nil
	}
	return &backend.MismatchError{Rank: rank, Peer: recv.Root, Mine: mine, Theirs: send}
}
