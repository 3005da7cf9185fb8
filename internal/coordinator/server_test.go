package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/testkit"
)

// programs are what this test binary can be besides a test.
var programs = map[string]func(){}

func TestMain(m *testing.M) { testkit.Main(m, programs) }

// job is a coordinator with one client per rank. open returns it before the ranks have joined.
type job struct {
	*Server
	clients []*Client
}

// transports are the two ways to connect ranks with the coordinator: over TCP, or inside one process.
var transports = []string{"tcp", "local"}

func open(t testing.TB, transport string, size int, change func(*ClientOptions)) *job {
	t.Helper()
	o := Options{Key: []byte("key"), HasSecret: true}
	co := ClientOptions{Options: o, Size: size, Host: "a test", HostRank: -1}
	if change != nil {
		change(&co)
	}
	j := &job{}
	var err error
	if transport == "tcp" {
		if j.Server, err = Listen("127.0.0.1:0", size, co.Options); err != nil {
			t.Fatal(err)
		}
	} else {
		j.Server = NewServer(size, co.Options)
	}
	t.Cleanup(func() {
		for _, c := range j.clients {
			c.Close()
		}
		j.Close()
	})
	for r := range size {
		c, err := j.connect(t.Context(), r, co)
		if err != nil {
			t.Fatal(err)
		}
		j.clients = append(j.clients, c)
	}
	return j
}

func (j *job) connect(ctx context.Context, rank int, o ClientOptions) (*Client, error) {
	if j.ln == nil {
		return j.Local(rank, o)
	}
	return Dial(ctx, j.Addr().String(), rank, o)
}

// The method each calls f for all ranks concurrently. It returns the errors of the calls, by rank.
func (j *job) each(f func(r int, c *Client) error) []error {
	errs := make([]error, len(j.clients))
	var wg sync.WaitGroup
	for r, c := range j.clients {
		wg.Go(func() { errs[r] = f(r, c) })
	}
	wg.Wait()
	return errs
}

// join makes all ranks of the job join session 1.
func (j *job) join(t testing.TB) {
	t.Helper()
	if err := errors.Join(j.each(func(r int, c *Client) error {
		_, err := c.Join(t.Context(), 1, nil, false, nil)
		return err
	})...); err != nil {
		t.Fatal(err)
	}
}

func forTransports(t *testing.T, f func(t *testing.T, transport string)) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) { f(t, transport) })
	}
}

// A rank connects again to a coordinator that had no time for it, and gives up when its context ends.
func TestDialWaitsForABusyCoordinator(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	o := ClientOptions{Options: Options{Key: []byte("key"), HasSecret: true}, Size: 2, Host: "a test"}
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			for range 2 {
				c, err := ln.Accept()
				if err != nil {
					return err
				}
				c.Close()
			}
			c, err := ln.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			self := handshake.Party{Role: handshake.Coordinator, HasSecret: true, Rank: -1, Process: handshake.ThisProcess()}
			_, _, err = handshake.Accept(c, self, o.Key, nil)
			return err
		}()
	}()
	c, err := Dial(t.Context(), ln.Addr().String(), 1, o)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, does := range []string{"ends the connection", "says nothing"} {
		if does == "ends the connection" {
			go func() {
				if c, err := ln.Accept(); err == nil {
					c.Close()
				}
			}()
		}
		ctx, cancel := awake.WithTimeoutCause(t.Context(), dialPause/2, errors.New("time is up")) // as package comm does
		defer cancel()
		if _, err := Dial(ctx, ln.Addr().String(), 1, o); err == nil || !strings.Contains(err.Error(), "time is up") {
			t.Errorf("with a coordinator that %s: %v", does, err)
		}
	}
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("time is up"))
	if _, err := Dial(ended, ln.Addr().String(), 1, o); err == nil || !strings.Contains(err.Error(), "time is up") {
		t.Errorf("before there was a connection: %v", err)
	}
}

// await waits until group g has failed, and returns the failure.
func await(t testing.TB, g *Group) *Failure {
	t.Helper()
	select {
	case <-g.Failed():
		return g.Failure()
	case <-time.After(time.Minute):
		t.Fatal("no failure")
		return nil
	}
}

// On every member of a group, Gather returns the values of all members. Join does the same for all ranks.
func TestGather(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 4, nil)
		err := errors.Join(j.each(func(r int, c *Client) error {
			values, err := c.Join(t.Context(), 1, nil, false, fmt.Append(nil, "at ", r))
			if err != nil {
				return err
			}
			if got := fmt.Sprintf("%s", values); got != "[at 0 at 1 at 2 at 3]" {
				return fmt.Errorf("rank %d joined with %s", r, got)
			}
			members := []int{r % 2, r%2 + 2}
			g, _, err := c.Root().Make(t.Context(), fmt.Sprint("half ", r%2), members, nil)
			if err != nil {
				return err
			}
			if values, err = g.Gather(t.Context(), "x", []byte{byte(r)}); err != nil {
				return err
			}
			if values[0][0] != byte(members[0]) || values[1][0] != byte(members[1]) {
				return fmt.Errorf("rank %d gathered %v", r, values)
			}
			return nil
		})...)
		if err != nil {
			t.Error(err)
		}
	})
}

// Posted waits until all ranks that it asks about have posted a value. Once Post has returned, other ranks
// read the new value, many in one call, also after a failure.
func TestPost(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 3, nil)
		j.join(t)
		read := func(ranks ...int) string {
			values, err := j.clients[2].Root().Posted(t.Context(), "key", ranks)
			if err != nil {
				t.Error(err)
			}
			return fmt.Sprintf("%s", values)
		}
		waited := make(chan string)
		go func() { waited <- read(0, 1) }()
		for n := range 2 {
			for r, c := range j.clients[:2] {
				if err := c.Root().Post(t.Context(), "key", fmt.Append(nil, 10*r+n)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := <-waited; got != "[0 10]" && got != "[1 10]" && got != "[1 11]" {
			t.Errorf("the rank that waited got %s", got)
		}
		j.clients[0].Root().Fail(&Failure{Text: "enough"})
		<-j.clients[0].Root().Failed()
		if err := j.clients[0].Root().Post(t.Context(), "key", []byte("2")); err != nil {
			t.Error(err)
		}
		if got := read(1, 0); got != "[11 2]" {
			t.Errorf("got %s, want [11 2]", got)
		}
		if transport != "local" {
			return
		}
		if err := j.clients[0].Root().Post(t.Context(), "key", make([]byte, maxPost)); err != nil {
			t.Error(err)
		}
		const many = maxPosted/maxPost + 2
		if values, err := j.clients[1].Root().Posted(t.Context(), "key", make([]int, many)); err != nil || len(values) != many || len(values[many-1]) != maxPost {
			t.Errorf("got %d values, %v, want %d", len(values), err, many)
		}
		if err := j.clients[0].Root().Post(t.Context(), "key", make([]byte, maxPost+1)); err == nil {
			t.Error("a value that is too large is posted")
		}
	})
}

// A rank that waits for a value of a rank that ends or leaves gets an error, also if it asks later.
func TestPostedByRankThatIsGone(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 4, nil)
		j.join(t)
		g := j.clients[0].Root()
		if err := j.clients[1].Root().Post(t.Context(), "key", []byte("1")); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error)
		read := func(ranks ...int) {
			_, err := g.Posted(t.Context(), "key", ranks)
			errs <- err
		}
		go read(1, 2)
		go read(3, 1, 2)
		j.clients[2].Close()
		for range 2 {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "rank 2 ended or left") {
				t.Errorf("got %v, want an error that names rank 2", err)
			}
		}
		go j.clients[3].Root().Leave(t.Context(), t.Context(), nil)
		go read(1, 3)
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "rank 3 ended or left") {
			t.Errorf("got %v, want an error that names rank 3", err)
		}
		go read(1)
		if err := <-errs; err != nil {
			t.Error(err)
		}
	})
}

// Several goroutines of one rank call Post and Posted concurrently, and some of them stop waiting
// early. Every answer reaches the goroutine that asked for it.
func TestConcurrentPosts(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 2, nil)
		j.join(t)
		g := j.clients[0].Root()
		if err := g.Post(t.Context(), "key", []byte("value")); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				if n%4 == 0 {
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					g.Post(ctx, "key", []byte("value"))
				}
				if err := g.Post(t.Context(), "key", []byte("value")); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if values, err := g.Posted(t.Context(), "key", []int{0, 0}); err != nil || fmt.Sprintf("%s", values) != "[value value]" {
					t.Errorf("got %s, %v", values, err)
				}
			})
		}
		wg.Wait()
	})
}

// When a rank's connection ends, every other rank receives Failed, and then Settled.
func TestDeathIsReportedToAll(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 5, nil)
		j.join(t)
		j.clients[3].Close()
		for r, c := range j.clients {
			if r == 3 {
				continue
			}
			f := await(t, c.Root())
			if f.Kind != Lost || !slices.Equal(f.Ranks, []int{3}) {
				t.Errorf("rank %d was told of %+v", r, f)
			}
			if c.Root().Quiet() {
				t.Errorf("rank %d was told of a failure and is quiet", r)
			}
			select {
			case <-c.Root().Settled():
			case <-time.After(time.Minute):
				t.Errorf("rank %d never hears that all know", r)
			}
		}
	})
}

// Inquire returns the answers of the ranks that answer in time. After Decide, all ranks receive the
// failure.
func TestInquireAndDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		j := open(t, "local", 4, nil)
		for r, c := range j.clients {
			c.Root().OnAsked(func(f *Failure) []byte {
				if r == 2 {
					<-hang
				}
				return fmt.Append(nil, f.Text, " at ", r)
			})
		}
		j.join(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // Inquire needs all of this time: rank 2 never answers
		defer cancel()
		answers, err := j.clients[0].Root().Inquire(ctx, &Failure{Text: "late"}, []int{1, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d: %s, %s", len(answers), answers[1], answers[3]); got != "2: late at 1, late at 3" {
			t.Errorf("the answers are %s", got)
		}
		j.clients[0].Root().Decide(&Failure{Text: "rank 2 is behind", Ranks: []int{2}})
		for r, c := range j.clients {
			if f := await(t, c.Root()); f.Text != "rank 2 is behind" || f.Reporter != 0 {
				t.Errorf("rank %d was told of %+v", r, f)
			}
		}
		close(hang)
	})
}

// Rank 0 calls Leave and does not wait for the other ranks to leave. Leave returns on rank 0 only when the
// other ranks have reached the progress of rank 0. When the other ranks leave later, the result alone of
// Leave is true on these ranks too.
func TestLeaveAlone(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 3, nil)
		j.join(t)
		passed := make(chan struct{})
		for _, c := range j.clients[1:] {
			c.Root().OnLeaving(func(ranks []int, values [][]byte, done func()) {
				if !slices.Equal(ranks, []int{0}) || string(values[0]) != "5" {
					t.Errorf("leaving are %v, at %s", ranks, values)
				}
				<-passed
				done()
			})
		}
		now, cancel := context.WithCancel(t.Context())
		cancel()
		left := make(chan error, 1)
		go func() {
			alone, err := j.clients[0].Root().Leave(now, t.Context(), []byte("5"))
			if err == nil && !alone {
				err = errors.New("it left together with the others")
			}
			left <- err
		}()
		select {
		case err := <-left:
			t.Errorf("left before the others had come as far: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(passed)
		if err := <-left; err != nil {
			t.Error(err)
		}
		if missing, err := j.clients[1].Root().Missing(t.Context(), LeaveKey); err != nil || !slices.Equal(missing, []int{1, 2}) {
			t.Errorf("%v have not left (%v)", missing, err)
		}
		j.clients[0].Depart(t.Context())
		errs := j.each(func(r int, c *Client) error {
			if r == 0 {
				return nil
			}
			alone, err := c.Root().Leave(t.Context(), t.Context(), nil)
			if err == nil && !alone {
				err = errors.New("one had left alone before")
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}

// When all members have left a group, the clients and the coordinator keep no state of it.
func TestGroupsThatWereLeftAreForgotten(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		var waiting sync.WaitGroup
		j := open(t, transport, 2, nil)
		j.join(t)
		err := errors.Join(j.each(func(r int, c *Client) error {
			for n := range 10 {
				g, _, err := c.Root().Make(t.Context(), fmt.Sprint("part ", n), []int{0, 1}, nil)
				if err == nil {
					_, err = g.Gather(t.Context(), ReadyKey, nil)
				}
				if err != nil {
					return err
				}
				if n%2 == 0 {
					g.Depart()
				} else if _, err := g.Leave(t.Context(), t.Context(), nil); err != nil {
					return err
				}
			}
			left, _, err := c.Root().Make(t.Context(), "left", []int{0, 1}, nil)
			if err == nil {
				_, err = c.Root().Gather(t.Context(), "made", nil)
			}
			if err != nil {
				return err
			}
			left.Depart()
			waiting.Go(func() {
				if _, err := left.Gather(t.Context(), "late", nil); err == nil {
					t.Error("a group that was left gathers")
				}
			})
			_, err = c.Root().Gather(t.Context(), "end", nil)
			return err
		})...)
		if err != nil {
			t.Fatal(err)
		}
		defer waiting.Wait() // this runs last: the goroutines end only when the deferred function below has closed the clients
		defer func() {
			for _, c := range j.clients {
				c.Close()
			}
		}()
		for r, c := range j.clients {
			if c.mu.Lock(); len(c.groups) != 1 {
				t.Errorf("rank %d keeps %d groups, want that of all", r, len(c.groups))
			}
			c.mu.Unlock()
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if n := len(j.sessions[1].core.groups); n != 1 {
			t.Errorf("the coordinator keeps %d groups, want that of all", n)
		}
	})
}

// Ranks call Leave at random times. The result alone of Leave is the same on all ranks, and no rank waits
// in Leave for longer than the timeout of its context, `grace`.
func TestLeaveAtAnyTime(t *testing.T) {
	const seeds, n, grace = 60, 4, 2 * time.Second
	jointly := 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			spread := []time.Duration{grace / 2, 2 * grace, 10 * grace}[seed%3]
			j := open(t, "local", n, nil)
			j.join(t)
			var alone [n]bool
			after := make([]time.Duration, n)
			for r := range after {
				after[r] = time.Duration(rng.Int64N(int64(spread)))
			}
			if err := errors.Join(j.each(func(r int, c *Client) (err error) {
				time.Sleep(after[r])
				at := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), grace)
				defer cancel()
				alone[r], err = c.Root().Leave(ctx, t.Context(), nil)
				if took := time.Since(at); took > grace {
					t.Errorf("seed %d: rank %d waited %v", seed, r, took)
				}
				c.Depart(t.Context())
				return err
			})...); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			for r := range n {
				if alone[r] != alone[0] {
					t.Fatalf("seed %d: ranks that leave alone: %v, want all or none", seed, alone)
				}
			}
			if !alone[0] {
				jointly++
			} else if spread < grace {
				t.Errorf("seed %d: ranks that leave within %v do not leave together", seed, spread)
			}
		})
	}
	if jointly == 0 || jointly == seeds {
		t.Errorf("all ranks left together in %d of %d cases: the times are ill chosen", jointly, seeds)
	}
}

// If a rank cannot join, Join fails on the other ranks, and the error says why.
func TestJoinFailures(t *testing.T) {
	for name, c := range map[string]struct {
		kind Kind
		want string
		act  func(t *testing.T, j *job) // called after ranks 0 and 1 have joined; rank 2 has not
	}{
		"exited":    {Exited, "exit code 3", func(t *testing.T, j *job) { j.Exited(2, "exit code 3") }},
		"lost":      {Lost, "its process ended, or called exec", func(t *testing.T, j *job) { j.clients[1].Close() }},
		"different": {Different, "and DETAIL on rank 2", func(t *testing.T, j *job) { joinAs(t, j.clients[2], "DETAIL") }},
		"duplicate": {Duplicate, "two processes say that they are rank 0", func(t *testing.T, j *job) {
			c, err := j.connect(t.Context(), 0, j.clients[0].opts)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			joinAs(t, c, "OFF")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			forTransports(t, func(t *testing.T, transport string) {
				j := open(t, transport, 3, nil)
				joined := make(chan error, 2)
				for _, c := range j.clients[:2] {
					go func() {
						_, err := c.Join(t.Context(), 1, []Option{{"DEBUG", "OFF"}}, false, nil)
						joined <- err
					}()
				}
				for { // until both ranks have joined
					j.mu.Lock()
					n := j.sessions[1]
					both := n != nil && len(n.peers) == 2
					j.mu.Unlock()
					if both {
						break
					}
					time.Sleep(time.Millisecond)
				}
				c.act(t, j)
				wantNotified := 2
				if c.kind == Lost {
					wantNotified = 1
				}
				failures := 0
				for range 2 {
					err := <-joined
					var f *Failure
					if errors.As(err, &f) && f.Kind == c.kind && strings.Contains(err.Error(), c.want) {
						failures++
					} else if c.kind != Lost {
						t.Errorf("join failed with %v, want %q", err, c.want)
					}
				}
				if failures != wantNotified {
					t.Errorf("%d ranks were told, want %d", failures, wantNotified)
				}
			})
		})
	}
}

// Several processes end before rank 0 joins. The error of its Join names the process that ended first.
func TestJoinNamesTheFirstProcessThatEnded(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		const n = 16
		j := open(t, transport, n, nil)
		for r := n - 1; r > 0; r-- {
			j.Exited(r, "exit code 1")
		}
		_, err := j.clients[0].Join(t.Context(), 1, nil, false, nil)
		var f *Failure
		if !errors.As(err, &f) || f.Kind != Exited || !slices.Equal(f.Ranks, []int{n - 1}) {
			t.Errorf("got %v, want that rank %d ended", err, n-1)
		}
	})
}

// The coordinator refuses a second process that joins as the same rank. This process cannot leave in
// the name of the first one, and the end of its connection is no failure.
func TestRefusedProcessDoesNotAffectItsRank(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 2, nil)
		j.join(t)
		for _, rank := range []int{1, 7} {
			c, err := j.connect(t.Context(), rank, j.clients[0].opts)
			if err != nil {
				t.Fatal(err)
			}
			joinAs(t, c, "OFF")
			p := &peer{rank: rank, session: j.sessions[1]}
			if err := j.handle(p, &Message{Verb: Leave, Final: true}); err == nil {
				t.Errorf("a second rank %d leaves for the first", rank)
			}
			c.Depart(t.Context())
		}
		if f := j.clients[0].Root().Failure(); f != nil {
			t.Errorf("rank 0 was told of %v", f)
		}
		if missing, err := j.clients[0].Root().Missing(t.Context(), LeaveKey); err != nil || len(missing) != 2 {
			t.Errorf("of 2 ranks %v have not left (%v)", missing, err)
		}
	})
}

func joinAs(t *testing.T, c *Client, debug string) {
	if _, err := c.Join(t.Context(), 1, []Option{{"DEBUG", debug}}, false, nil); err == nil {
		t.Error("joined")
	}
}

// If the coordinator ends, all ranks have a failure that names no rank.
func TestLossOfTheCoordinatorNamesNoRank(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 2, func(o *ClientOptions) { o.Interval = 5 * time.Millisecond })
		j.join(t)
		j.Server.Close()
		for r, c := range j.clients {
			f := await(t, c.Root())
			if f.Kind != Unreachable || len(f.Ranks) > 0 || !strings.Contains(f.Text, "a test") {
				t.Errorf("rank %d: %+v", r, f)
			}
			<-c.Root().Settled()
		}
	})
}

// If the other end of a connection has been silent for Options.Silence, the connection ends. This holds
// for silent ranks and for a silent coordinator.
func TestSilentEndIsLost(t *testing.T) {
	quick := func(o *ClientOptions) { o.Interval, o.Silence = 20*time.Millisecond, time.Second }
	t.Run("rank", func(t *testing.T) {
		t.Parallel()
		j := open(t, "tcp", 2, quick)
		j.join(t)
		stopped := j.clients[1]
		stopped.mu.Lock() // rank 1's client can then neither receive nor send
		f := await(t, j.clients[0].Root())
		stopped.mu.Unlock()
		if f.Kind != Lost || !slices.Equal(f.Ranks, []int{1}) || !strings.Contains(f.Text, "no message arrived") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("coordinator", func(t *testing.T) {
		t.Parallel()
		j := open(t, "tcp", 2, quick)
		j.join(t)
		j.mu.Lock()
		for r, c := range j.clients {
			if f := await(t, c.Root()); f.Kind != Unreachable || !strings.Contains(f.Text, "no message arrived") {
				t.Errorf("rank %d: %+v", r, f)
			}
			if c.Root().Quiet() {
				t.Errorf("rank %d is quiet", r)
			}
		}
		j.mu.Unlock()
	})
	t.Run("coordinator that is reported to", func(t *testing.T) {
		j := open(t, "tcp", 2, func(o *ClientOptions) { o.Interval = 60 * time.Millisecond }) // a busy machine delays ticks
		j.join(t)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.clients[1].Root().Fail(&Failure{Text: "late"}, 0)
		if f := await(t, j.clients[1].Root()); f.Text != "late" || f.Reporter != 1 {
			t.Errorf("%+v, want what this rank reported", f)
		}
		if j.clients[0].Root().Quiet() {
			t.Error("another rank is quiet when this one may abort")
		}
	})
}

// Rank 0 reports a failure while the coordinator or the asked rank is suspended. If only the asked
// rank is suspended, rank 0 asks the coordinator to decide without the answer, and all ranks receive
// the failure. If the coordinator is suspended, rank 0 breaks its own groups, and the other ranks
// receive the failure when the coordinator runs again.
func TestReportIsDecidedWhileOthersAreSuspended(t *testing.T) {
	for _, c := range []struct {
		suspended, transport string
		of                   func(j *job) *sync.Mutex
	}{
		{"coordinator", "tcp", func(j *job) *sync.Mutex { return &j.mu }},
		{"asked", "tcp", func(j *job) *sync.Mutex { return &j.clients[1].mu }},
		{"asked", "local", func(j *job) *sync.Mutex { return &j.clients[1].mu }},
	} {
		t.Run(c.suspended+" "+c.transport, func(t *testing.T) {
			const interval = 20 * time.Millisecond
			j := open(t, c.transport, 3, func(o *ClientOptions) { o.Interval = interval })
			j.join(t)
			g, _, err := j.clients[0].Root().Make(t.Context(), "alone", []int{0}, nil)
			if err == nil {
				_, err = g.Gather(t.Context(), ReadyKey, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			mu := c.of(j)
			mu.Lock()
			start := time.Now()
			g.Fail(&Failure{Text: "broken"}, 1)
			f := await(t, j.clients[0].Root())
			// The first tick may be due when the report is made. If it is late, the second one follows it at once.
			if took := time.Since(start); took < (leaseTicks-2)*interval {
				t.Errorf("given up after %v", took)
			}
			if f.Text != "broken" || f.Reporter != 0 || f.Group != "alone" || g.Failure() != f {
				t.Errorf("the failure is %+v, that of the group %+v", f, g.Failure())
			}
			if c.suspended == "asked" {
				await(t, j.clients[2].Root())
			} else if f := j.clients[2].Root().Failure(); f != nil {
				t.Errorf("rank 2 was told of %+v", f)
			}
			mu.Unlock()
			for r, c := range j.clients { // all ranks and the coordinator run again, and all ranks receive the failure
				if f := await(t, c.Root()); f.Text != "broken" || f.Reporter != 0 {
					t.Errorf("rank %d was told of %+v", r, f)
				}
			}
		})
	}
}

// Rank 0 reports a failure and is then suspended. The coordinator asks rank 1 about this failure, but
// rank 1 is suspended too, so the coordinator cannot decide. Rank 2 then reports another failure. Rank 2
// asks for a decision until the coordinator chooses the failure of rank 2.
func TestReportReplacesThatOfASuspendedRank(t *testing.T) {
	forTransports(t, func(t *testing.T, transport string) {
		j := open(t, transport, 3, func(o *ClientOptions) { o.Interval = 20 * time.Millisecond })
		j.join(t)
		j.clients[1].mu.Lock()
		root := j.clients[0].Root()
		j.clients[0].send(&Message{Verb: Fail, Failure: &Failure{Text: "first"}, Ranks: []int{1}}) // afterwards rank 0 does nothing, like a suspended rank
		if _, err := root.Missing(t.Context(), JoinKey); err != nil {
			t.Fatal(err)
		}
		j.clients[2].Root().Fail(&Failure{Text: "second"}, 1)
		f := await(t, j.clients[2].Root())
		j.clients[1].mu.Unlock()
		if f.Text != "second" || f.Reporter != 2 {
			t.Errorf("rank 2 was told of %+v", f)
		}
	})
}

// All processors are busy. Even then every rank hears from the coordinator often enough: the silence is
// always shorter than leaseTicks.
func TestBusyProcessorsLoseNoRank(t *testing.T) {
	testkit.Long(t)
	const interval = DefaultInterval / 4 // the shorter, the harder
	j := open(t, "tcp", 8, func(o *ClientOptions) { o.Interval = interval })
	j.join(t)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for !closed(stop) {
			}
		})
	}
	for start := time.Now(); time.Since(start) < 2*leaseTicks*interval; time.Sleep(interval / 4) {
		for r, c := range j.clients {
			c.mu.Lock()
			if c.silence >= leaseTicks {
				t.Errorf("rank %d has not heard of the coordinator for %d intervals", r, c.silence)
			}
			c.mu.Unlock()
		}
	}
	close(stop)
	busy.Wait()
}

// The report of another rank has reached the process of the coordinator, and the coordinator has not
// handled the report yet. Quiet must already not return true on the rank that hosts the coordinator.
func TestQuietInTheCoordinatorsProcess(t *testing.T) {
	j := open(t, "tcp", 2, nil)
	local, err := j.Local(0, j.clients[0].opts)
	if err != nil {
		t.Fatal(err)
	}
	j.clients[0].Close()
	j.clients[0] = local
	j.join(t)
	root := local.Root()
	deadline := time.Now().Add(time.Minute)
	for !root.Quiet() {
		if time.Now().After(deadline) {
			t.Fatal("not quiet, though nothing was said")
		}
	}
	j.mu.Lock() // from now on the server reads messages but cannot handle them
	j.clients[1].Root().Fail(&Failure{Text: "bad call"})
	for j.taken.Load() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	quiet := make(chan bool)
	go func() { quiet <- root.Quiet() }()
	select {
	case q := <-quiet:
		t.Errorf("quiet is %v before the coordinator can tell", q)
		j.mu.Unlock()
		return
	case <-time.After(20 * time.Millisecond):
	}
	j.mu.Unlock()
	if <-quiet {
		t.Error("quiet, though a failure was reported")
	}
}

// The coordinator does not serve clients that have another key or do not know the protocol.
func TestUnknownClientsAreNotServed(t *testing.T) {
	j := open(t, "tcp", 2, nil)
	o := j.clients[0].opts
	o.Key = []byte("another")
	if c, err := Dial(t.Context(), j.Addr().String(), 0, o); err == nil {
		c.Close()
		t.Error("served with another key")
	}
	c, err := net.Dial("tcp", j.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	c.SetReadDeadline(time.Now().Add(time.Minute))
	for b := make([]byte, 64); err == nil; _, err = c.Read(b) {
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a stranger is kept")
	}
	j.join(t)
}

// If there are too many connections, the coordinator refuses a rank. The rank's error says why.
func TestTooManyConnectionsAreRefused(t *testing.T) {
	j := open(t, "tcp", 2, nil)
	j.mu.Lock()
	j.limit, j.limitReason = 2, ": of a test"
	j.mu.Unlock()
	var refused *handshake.RefusedError
	c, err := j.connect(t.Context(), 1, j.clients[0].opts)
	if err == nil {
		c.Close()
	}
	if !errors.As(err, &refused) || refused.Text != "too many connections to the coordinator: 3, want at most 2: of a test" {
		t.Errorf("refused with %v", err)
	}
	j.join(t)
}
