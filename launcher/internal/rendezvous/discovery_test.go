package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

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

// muteElection is an election that never ends.
type muteElection struct{ endingElection }

func (muteElection) Elect(ctx context.Context, _, _ string) (string, election.Term, error) {
	<-ctx.Done()
	return "", nil, context.Cause(ctx)
}

// An etcd that does not answer is named once while Find waits, and when its time is over.
func TestSilentEtcdIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errNoHost)
		defer cancel()
		var said []string
		e := &Etcd{Addr: "127.0.0.1", Endpoints: []string{"a:2379", "b:2379"}, Waiting: func(text string) { said = append(said, text) },
			Open: func(context.Context) (election.Election, error) { return &muteElection{}, nil }}
		defer e.Close()
		_, err := e.Find(ctx, "")
		if want := "etcd at a:2379, b:2379: no host of the rendezvous was found in time"; err == nil || err.Error() != want {
			t.Errorf("Find returned %v, want %q", err, want)
		}
		if want := "etcd at a:2379, b:2379 has named no host of the rendezvous yet; does it run there?"; len(said) != 1 || said[0] != want {
			t.Errorf("it said %q, want %q once", said, want)
		}
		said = nil
		for range 2 { // each Find that has lost the same host
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errNoHost)
			_, _ = e.Find(ctx, "c:1")
			cancel()
		}
		if want := "etcd at a:2379, b:2379 has named no other host of the rendezvous yet in place of c:1, which this node has lost"; len(said) != 1 || said[0] != want {
			t.Errorf("after the loss of a host it said %q, want %q once", said, want)
		}
	})
}

// The name of the endpoint may not be known yet.
func TestEndpointIsLookedUpAgain(t *testing.T) {
	unknown := errors.New("no such host")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errNoHost)
		defer cancel()
		known := time.Now().Add(2 * patience)
		e := Endpoint{Addr: "node0:29400", lookup: func(_ context.Context, host string) ([]net.IPAddr, error) {
			if host != "node0" || time.Now().Before(known) {
				return nil, fmt.Errorf("lookup %s: %w", host, unknown)
			}
			return []net.IPAddr{{IP: net.IPv4(192, 0, 2, 1)}}, nil
		}}
		_, err := e.Find(ctx, "")
		if !errors.As(err, new(*unreachableError)) || err.Error() != "the host of the rendezvous, node0:29400, cannot be reached yet: lookup node0: no such host" {
			t.Errorf("after %v: %v", patience, err)
		}
		if found, err := e.Find(ctx, ""); err != nil || found.Addr != "node0:29400" || time.Now().Before(known) {
			t.Errorf("got %+v, %v", found, err)
		}
		known = time.Now().Add(time.Hour)
		for ctx.Err() == nil {
			_, err = e.Find(ctx, "")
		}
		if !errors.As(err, new(*unreachableError)) || !errors.Is(err, unknown) || time.Now().After(known) {
			t.Errorf("when no time is left: %v", err)
		}
	})
}
