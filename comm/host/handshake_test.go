package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/store"
)

var theSecret = []byte("the secret of these tests")

// joinAs makes a group of two, in which the ranks are members of a job, over transport.
func joinAs(t *testing.T, transport string, members [2]store.Member) (errs [2]error) {
	t.Helper()
	kv := store.NewLocal()
	var wg sync.WaitGroup
	var groups [2]*host.Group
	for r, m := range members {
		wg.Go(func() {
			o := &host.Options{Member: m}
			if transport == "tcp" {
				o.HostID = strconv.Itoa(r)
			}
			groups[r], errs[r] = host.New(t.Context(), backend.Config{Rank: r, Size: 2, Store: kv, Timeout: soon}, o)
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

// Ranks join if they are of one job and have one secret. What differs is the error of
// both, at once.
func TestRanksCompareTheirJobs(t *testing.T) {
	job := store.Job{ID: "job", World: 2}
	for name, c := range map[string]struct {
		members [2]store.Member
		want    string // in the dialler's error, which is rank 1's
	}{
		"one job":        {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job, Secret: theSecret}}, ""},
		"no secret":      {[2]store.Member{{Job: job}, {Job: job}}, ""},
		"another job":    {[2]store.Member{{Job: job}, {Job: store.Job{ID: "other", World: 2}}}, `job id "other" here, "job" there`},
		"another size":   {[2]store.Member{{Job: job}, {Job: store.Job{ID: "job", World: 3}}}, "WORLD_SIZE 3 here, 2 there"},
		"another secret": {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job, Secret: []byte("not that secret at all")}}, "has another secret than this process"},
		"one secret":     {[2]store.Member{{Job: job, Secret: theSecret}, {Job: job}}, "has a secret, and this process has none"},
	} {
		for _, transport := range []string{"shared", "tcp"} {
			t.Run(name+" "+transport, func(t *testing.T) {
				begun := time.Now()
				errs := joinAs(t, transport, c.members)
				if c.want == "" {
					if err := errors.Join(errs[:]...); err != nil {
						t.Error(err)
					}
					return
				}
				var told *backend.JoinError
				if !strings.Contains(fmt.Sprint(errs[1]), c.want) || !errors.As(errs[0], &told) || told.Rank != 1 || !strings.Contains(told.Error(), c.want) {
					t.Errorf("rank 1: %v; rank 0: %v; want %q", errs[1], errs[0], c.want)
				}
				for _, err := range errs {
					if strings.Contains(fmt.Sprint(err), string(theSecret)) || strings.Contains(fmt.Sprint(err), "not that secret") {
						t.Errorf("a secret is told: %v", err)
					}
				}
				if took := time.Since(begun); took > soon/2 {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// dialAs opens a connection to rank 0, as process of rank 1 that can read the store.
func dialAs(t *testing.T, kv store.Store, process handshake.Process, secret []byte) (net.Conn, error) {
	t.Helper()
	value, err := kv.Get(t.Context(), "rank/0")
	if err != nil {
		t.Fatal(err)
	}
	token, err := kv.Get(t.Context(), "token")
	if err != nil {
		t.Fatal(err)
	}
	var at struct{ TCP []string }
	if err := json.Unmarshal(value, &at); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", at.TCP[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(soon))
	own := handshake.Party{Role: handshake.PeerDialler, HasSecret: secret != nil, Rank: 1, Process: process}
	if _, err = handshake.Dial(c, own, host.GroupKey(secret, token)); err == nil {
		_, err = c.Write([]byte{host.Accepted})
	}
	return c, err
}

// What is in the store does not let a process join that has not got the secret, and the
// group is made without it.
func TestTheStoreDoesNotTellTheSecret(t *testing.T) {
	kv := store.NewLocal()
	member := store.Member{Secret: theSecret}
	errs := make(chan error, 2)
	join := func(r int) {
		g, err := host.New(t.Context(), backend.Config{Rank: r, Size: 2, Store: kv, Timeout: soon}, &host.Options{HostID: strconv.Itoa(r), Member: member})
		errs <- err
		if err == nil {
			g.Close(context.Background())
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { join(0) })
	for _, secret := range [][]byte{nil, []byte("guessed, and wrong")} {
		if _, err := dialAs(t, kv, handshake.ThisProcess(), secret); !errors.As(err, new(*handshake.SecretError)) {
			t.Errorf("secret %q: %v", secret, err)
		}
	}
	wg.Go(func() { join(1) })
	wg.Wait()
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Error(err)
	}
}

// If two processes introduce themselves to rank 0 as the same rank, its New fails with an
// error that names both.
func TestRivalPeers(t *testing.T) {
	kv := store.NewLocal()
	first := make(chan error, 1)
	go func() {
		_, err := host.New(t.Context(), backend.Config{Rank: 0, Size: 3, Store: kv, Timeout: soon}, &host.Options{HostID: "0"})
		first <- err
	}()
	for _, key := range []string{"rank/1", "rank/2"} {
		if err := kv.Set(t.Context(), key, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	var conns []net.Conn
	for pid := range 2 {
		c, err := dialAs(t, kv, handshake.Process{ID: fmt.Sprint("p", pid), Host: "elsewhere", PID: 1000 + pid}, nil)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	err := <-first
	var rivals *handshake.RivalError
	if !errors.As(err, &rivals) || rivals.Rank != 1 || rivals.First.PID+rivals.Second.PID != 2001 || !strings.Contains(err.Error(), "GODDP_JOB_ID") {
		t.Errorf("got %v", err)
	}
	for _, c := range conns {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is still there")
		}
	}
}
