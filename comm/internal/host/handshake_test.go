package host_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
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
	job := handshake.Job{ID: "job", World: 2}
	for name, c := range map[string]struct {
		members [2]store.Member
		want    string // part of the error of rank 1, which dials; empty: no error
	}{
		"one job":      {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job, Secret: theSecret}}, ""},
		"no secret":    {[2]store.Member{{Job: job}, {Job: job}}, ""},
		"another job":  {[2]store.Member{{Job: job}, {Job: handshake.Job{ID: "other", World: 2}}}, `job id "other" here, "job" there`},
		"another size": {[2]store.Member{{Job: job}, {Job: handshake.Job{ID: "job", World: 3}}}, "WORLD_SIZE is 3 here and 2 in process"},
		"one secret":   {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job}}, "has a secret, and this process has none"},
	} {
		for _, transport := range []string{"shared", "tcp"} {
			t.Run(name+" "+transport, func(t *testing.T) {
				errs := joinAs(t, transport, c.members)
				if c.want == "" {
					if err := errors.Join(errs[:]...); err != nil {
						t.Error(err)
					}
					return
				}
				var joinErr *failure.JoinError
				if !strings.Contains(fmt.Sprint(errs[1]), c.want) || !errors.As(errs[0], &joinErr) || joinErr.Rank != 1 || !strings.Contains(joinErr.Error(), c.want) {
					t.Errorf("rank 1: %v; rank 0: %v; want %q", errs[1], errs[0], c.want)
				}
			})
		}
	}
}
