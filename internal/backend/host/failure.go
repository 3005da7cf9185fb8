package host

import (
	"context"
	"errors"

	"github.com/goddp/goddp/internal/backend"
)

// errBroke is why a rank does not trust what it read of a peer's memory.
var errBroke = errors.New("its process group broke")

// inJob is a rank of the group as the job numbers it.
func (g *Group) inJob(rank int) int { return g.cfg.Control.Members[rank] }

// lost is the error of a call that needed a peer, to which the connection failed with err;
// or why ctx ended, if it has.
func (g *Group) lost(ctx context.Context, peer int, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &backend.PeerLostError{Peer: g.inJob(peer), Err: err}
}

// left is the error of a call that needed a peer that closed its group.
func (g *Group) left(peer int) error {
	return &backend.PeerLostError{Peer: g.inJob(peer), Left: true}
}

// asked is the ranks of the job that have to say whether they know more about err.
func asked(err error) []int {
	var lost *backend.PeerLostError
	var mismatch *backend.MismatchError
	switch {
	case errors.As(err, &lost):
		return []int{lost.Peer}
	case errors.As(err, &mismatch):
		return []int{mismatch.Peer}
	}
	return nil
}

// mismatched is the error of a call that does not fit a peer's, in a group of these members.
func mismatched(members []int, rank, peer int, mine, theirs backend.Fingerprint) error {
	return &backend.MismatchError{Rank: members[rank], Peer: members[peer], Mine: mine.InJob(members), Theirs: theirs.InJob(members)}
}

// matchSend compares a Recv with the Send that meets it.
func (g *Group) matchSend(recv *backend.Call, send backend.Fingerprint) error {
	mine := recv.Fingerprint()
	if send.Kind == backend.Send && send.DType == mine.DType && send.Count == mine.Count {
		return nil
	}
	return mismatched(g.cfg.Control.Members, g.cfg.Rank, recv.Root, mine, send)
}
