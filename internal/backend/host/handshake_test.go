package host_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/host"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/store"
)

var theSecret = []byte("the secret of these tests")

// joinAs makes a group of two processes of the given jobs over a transport.
func joinAs(t *testing.T, transport string, members [2]store.Member) (errs [2]error) {
	t.Helper()
	ranks := coordinatortest.Ranks(t, 2)
	var wg sync.WaitGroup
	var groups [2]*host.Group
	for r, m := range members {
		wg.Go(func() {
			o := &host.Options{Member: m}
			if transport == "tcp" {
				o.HostID = strconv.Itoa(r)
			}
			groups[r], errs[r] = host.New(t.Context(), backend.Config{Rank: r, Size: 2, Control: ranks[r], Timeout: soon}, o)
		})
	}
	wg.Wait()
	for _, g := range groups {
		if g != nil {
			wg.Go(func() { g.Close(t.Context()) })
		}
	}
	wg.Wait()
	return errs
}

// Ranks join if they have the same job and secret. Otherwise both return at once with an error that
// says what differs.
func TestRanksOfDifferentJobsDoNotJoin(t *testing.T) {
	job := store.Job{ID: "job", World: 2}
	for name, c := range map[string]struct {
		members [2]store.Member
		want    string // part of the error of rank 1, which dials; empty: no error
	}{
		"one job":      {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job, Secret: theSecret}}, ""},
		"no secret":    {[2]store.Member{{Job: job}, {Job: job}}, ""},
		"another job":  {[2]store.Member{{Job: job}, {Job: store.Job{ID: "other", World: 2}}}, `job id "other" here, "job" there`},
		"another size": {[2]store.Member{{Job: job}, {Job: store.Job{ID: "job", World: 3}}}, "WORLD_SIZE is 3 here and 2 in process"},
		"one secret":   {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job}}, "has a secret, and this process has none"},
	} {
		for _, transport := range []string{"shared", "tcp"} {
			t.Run(name+" "+transport, func(t *testing.T) {
				start := time.Now()
				errs := joinAs(t, transport, c.members)
				if c.want == "" {
					if err := errors.Join(errs[:]...); err != nil {
						t.Error(err)
					}
					return
				}
				var joinErr *backend.JoinError
				if !strings.Contains(fmt.Sprint(errs[1]), c.want) || !errors.As(errs[0], &joinErr) || joinErr.Rank != 1 || !strings.Contains(joinErr.Error(), c.want) {
					t.Errorf("rank 1: %v; rank 0: %v; want %q", errs[1], errs[0], c.want)
				}
				for _, err := range errs {
					if strings.Contains(fmt.Sprint(err), string(theSecret)) || strings.Contains(fmt.Sprint(err), "not that secret") {
						t.Errorf("the error contains a secret: %v", err)
					}
				}
				if took := time.Since(start); took > soon/2 {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// A connection with a wrong key is refused. The ranks join all the same.
func TestConnectionWithoutTheKeyIsRefused(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 2)
	_, addr := testkit.Port(t)
	addrs := [2]string{addr, ""}
	errs := make(chan error, 2)
	join := func(r int) {
		o := &host.Options{HostID: strconv.Itoa(r), Member: store.Member{Secret: theSecret}, Listen: addrs[r]}
		g, err := host.New(t.Context(), backend.Config{Rank: r, Size: 2, Control: ranks[r], Timeout: soon}, o)
		errs <- err
		if err == nil {
			g.Close(context.Background())
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { join(0) })
	for _, key := range [][]byte{nil, []byte("guessed, and wrong")} {
		c := dialSoon(t, addrs[0])
		c.SetDeadline(time.Now().Add(soon))
		dialler := handshake.Party{Role: handshake.PeerDialler, HasSecret: true, Rank: 1, Process: handshake.ThisProcess()}
		if _, _, err := handshake.Dial(c, dialler, key); !errors.As(err, new(*handshake.SecretError)) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	wg.Go(func() { join(1) })
	wg.Wait()
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Error(err)
	}
}
