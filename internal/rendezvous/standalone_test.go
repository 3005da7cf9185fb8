package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStandaloneRounds(t *testing.T) {
	s := &Standalone{}
	defer s.Close()
	var before *Round
	for number := range 3 {
		round, err := s.Join(t.Context(), Node{Workers: 4})
		if err != nil {
			t.Fatal(err)
		}
		want := Round{Number: number, Nodes: 1, WorldSize: 4, MasterAddr: "127.0.0.1", MasterPort: round.MasterPort}
		if *round != want {
			t.Errorf("round %d is %+v", number, *round)
		}
		if before != nil && before.MasterPort != round.MasterPort && reachable(before) {
			t.Errorf("the store of round %d outlives it", before.Number)
		}
		if !reachable(round) {
			t.Errorf("no store at %s:%d", round.MasterAddr, round.MasterPort)
		}
		before = round
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if reachable(before) {
		t.Error("the store outlives Close")
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

// A round must not see the keys of the round before, even on the same port.
func TestStandaloneFreshStore(t *testing.T) {
	s := &Standalone{}
	defer s.Close()
	first, err := s.Join(t.Context(), Node{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	s.Port = first.MasterPort
	if err := s.store.Local().Set(t.Context(), "key", []byte("stale")); err != nil {
		t.Fatal(err)
	}
	second, err := s.Join(t.Context(), Node{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if second.MasterPort != first.MasterPort {
		t.Errorf("port %d, want %d", second.MasterPort, first.MasterPort)
	}
	found, err := s.store.Local().Check(t.Context(), "key")
	if err != nil || found {
		t.Errorf("the key of round 0 is there in round 1: %v, %v", found, err)
	}
}

func TestStandaloneErrors(t *testing.T) {
	taken := &Standalone{}
	defer taken.Close()
	round, err := taken.Join(t.Context(), Node{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := &Standalone{Port: round.MasterPort}
	var opErr *net.OpError
	if _, err := s.Join(t.Context(), Node{Workers: 1}); !errors.As(err, &opErr) {
		t.Errorf("a port in use gives %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := (&Standalone{}).Join(ctx, Node{Workers: 1}); err != cause {
		t.Errorf("a cancelled join gives %v", err)
	}
}

func reachable(r *Round) bool {
	conn, err := net.Dial("tcp", net.JoinHostPort(r.MasterAddr, fmt.Sprint(r.MasterPort)))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
