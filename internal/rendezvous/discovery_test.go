package rendezvous

import (
	"context"
	"errors"
	"testing"

	"github.com/goddp/goddp/internal/election"
)

// endingElection is an election whose process has ended, or, if it is not broken, one that elects another agent.
type endingElection struct{ isBroken bool }

func (e *endingElection) Elect(context.Context, string, string) (string, election.Term, error) {
	if e.isBroken {
		return "", nil, election.ErrEnded
	}
	return "other:1", nil, nil
}

func (e *endingElection) Close() error { return nil }

// If the process that holds an election was killed, Find starts another, but not for ever.
func TestFindOpensAnotherElection(t *testing.T) {
	for _, c := range []struct {
		broken int // so many elections have ended
		opens  int
		err    error
	}{{0, 1, nil}, {1, 2, nil}, {100, electionTries, election.ErrEnded}} {
		opens := 0
		e := &Etcd{Addr: "127.0.0.1", Open: func(context.Context) (election.Election, error) {
			opens++
			return &endingElection{opens <= c.broken}, nil
		}}
		found, err := e.Find(t.Context(), "")
		if !errors.Is(err, c.err) || opens != c.opens || err == nil && found.Addr != "other:1" {
			t.Errorf("after %d ends: %+v, %v, opened %d times, want %v and %d times", c.broken, found, err, opens, c.err, c.opens)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
