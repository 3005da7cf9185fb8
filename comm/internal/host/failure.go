package host

import (
	"context"
	"errors"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
)

// errBroke is the cause of a PeerLostError if a peer's group broke while this rank may have been
// reading the peer's memory.
var errBroke = errors.New("its process group broke")

// jobRank converts a rank of the group to its rank in the job.
func (g *Group) jobRank(rank int) int { return g.cfg.Control.Members[rank] }

// peerLost returns the error of a call whose connection to peer failed with err. If ctx has ended,
// peerLost returns ctx's cause instead.
func (g *Group) peerLost(ctx context.Context, peer int, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &failure.PeerLostError{Peer: g.jobRank(peer), Err: err}
}

// peerLeft returns the error of a call that needs a peer which closed its group.
func (g *Group) peerLeft(peer int) error {
	return &failure.PeerLostError{Peer: g.jobRank(peer), Left: true}
}

// ranksToAsk returns the ranks of the job that the coordinator queries for an earlier cause before
// it accepts err.
func ranksToAsk(err error) []int {
	var lost *failure.PeerLostError
	var mismatch *failure.MismatchError
	switch {
	case errors.As(err, &lost):
		return []int{lost.Peer}
	case errors.As(err, &mismatch):
		return []int{mismatch.Peer}
	}
	return nil
}

// mismatchError returns the error of a call that does not match the call of peer. members are the
// group's ranks in the job.
func mismatchError(members []int, rank, peer int, mine, theirs backend.Fingerprint) error {
	return &failure.MismatchError{Rank: members[rank], Peer: members[peer], Mine: mine.InJob(members).String(), Theirs: theirs.InJob(members).String()}
}

// matchSend returns an error if a Recv does not match the peer's Send.
func (g *Group) matchSend(recv *backend.Call, send backend.Fingerprint) error {
	mine := recv.Fingerprint()
	if send.Kind == backend.Send && send.DType == mine.DType && send.Count == mine.Count {
		return nil
	}
	return mismatchError(g.cfg.Control.Members, g.cfg.Rank, recv.Root, mine, send)
}
