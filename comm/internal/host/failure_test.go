package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
)

const soon = backendtest.Soon

// outcomes starts one call on every rank for which calls returns one, and returns the ranks'
// errors.
func outcomes(t *testing.T, groups []*backendtest.Rank, calls func(r int) *backend.Call) []error {
	t.Helper()
	errs := make([]error, len(groups))
	each(groups, func(r int, g *backendtest.Rank) error {
		c := calls(r)
		if c == nil {
			return nil
		}
		task, err := g.Start(c)
		if err == nil {
			backendtest.Deadline(g, r, c, task)
			ctx, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("the call hangs"))
			defer cancel()
			err = task.Sync(ctx)
		}
		errs[r] = err
		return nil
	})
	return errs
}

func reduceCall(n int) *backend.Call {
	x := device.HostTensor(make([]float32, n), device.Invalid)
	return &backend.Call{Seq: 1, Kind: backend.AllReduce, Dst: x, Src: x, Timeout: soon, Name: "bucket 3"}
}

// The ranks' calls do not match. All ranks get a MismatchError, and no later call is started.
func TestMismatchedCallsFailOnAllRanks(t *testing.T) {
	f32 := func(n int) device.Tensor { return device.HostTensor(make([]float32, n), device.Invalid) }
	i32 := func(n int) device.Tensor { return device.HostTensor(make([]int32, n), device.Invalid) }
	for _, n := range []int{10, 100_000} {
		rank1 := func(c *backend.Call) func(r int) *backend.Call {
			return func(r int) *backend.Call {
				if r == 1 {
					return c
				}
				return reduceCall(n)
			}
		}
		for what, calls := range map[string]func(r int) *backend.Call{
			"size":      rank1(&backend.Call{Seq: 1, Kind: backend.AllReduce, Dst: f32(n + 1), Src: f32(n + 1)}),
			"kind":      rank1(&backend.Call{Seq: 1, Kind: backend.Broadcast, Root: 1, Dst: f32(n), Src: f32(n)}),
			"type":      rank1(&backend.Call{Seq: 1, Kind: backend.AllReduce, Dst: i32(n), Src: i32(n)}),
			"reduction": rank1(&backend.Call{Seq: 1, Kind: backend.AllReduce, Op: backend.Max, Dst: f32(n), Src: f32(n)}),
			"number":    rank1(&backend.Call{Seq: 2, Kind: backend.AllReduce, Dst: f32(n), Src: f32(n)}),
			"barrier":   rank1(&backend.Call{Seq: 1, Kind: backend.Barrier}),
			"counts, whose sum is the same": func(r int) *backend.Call {
				counts := []int{1, n, 2}
				if r == 2 {
					counts = []int{1, 2, n}
				}
				return &backend.Call{Kind: backend.AllGather, Counts: counts, Timeout: soon, Src: i32(counts[r]), Dst: i32(n + 3)}
			},
			"message": func(r int) *backend.Call { // the receivers expect another number of elements than was sent
				if r == 0 {
					return &backend.Call{Kind: backend.Send, Root: 1, Src: f32(n), Timeout: soon}
				}
				return &backend.Call{Kind: backend.Recv, Root: r - 1, Dst: f32(n + 1), Timeout: soon}
			},
		} {
			for _, name := range mainTransports() {
				t.Run(fmt.Sprintf("%s/%s/%d", name, what, n), func(t *testing.T) {
					groups := open(t, name, 3)
					for r, err := range outcomes(t, groups, calls) {
						var m *failure.MismatchError
						if !errors.As(err, &m) && (r > 0 || what != "message") { // the sender may have sent before
							t.Fatalf("rank %d: %v", r, err)
						}
						if m != nil && m.Mine == m.Theirs && calls(0).Counts == nil {
							t.Errorf("rank %d: both sides of the mismatch are %v", r, m.Mine)
						}
						if _, err := groups[r].Start(reduceCall(n)); err == nil && r > 0 {
							t.Errorf("rank %d: the group is still in use", r)
						}
					}
				})
			}
		}
	}
}

// Ranks of one process wait only in ways that testing/synctest can fast-forward.
func TestTimeoutOnAFakeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := open(t, "inproc", 4)
		began := time.Now()
		errs := make([]error, 4)
		each(groups[:3], func(r int, g *backendtest.Rank) error {
			first, second := reduceCall(1<<16), reduceCall(1<<16)
			first.Timeout, second.Timeout, second.Seq = 10*time.Minute, 20*time.Minute, 2
			a, err := g.Start(first)
			if err != nil {
				return err
			}
			b, err := g.Start(second)
			if err != nil {
				return err
			}
			backendtest.Deadline(g, r, first, a)
			backendtest.Deadline(g, r, second, b)
			errs[r] = a.Sync(context.Background())
			var callErr *failure.CallError
			if err := b.Sync(context.Background()); !errors.Is(err, failure.ErrTimeout) || !errors.As(err, &callErr) || !strings.Contains(callErr.Call, "#2") {
				t.Errorf("rank %d: the call behind: %v", r, err)
			}
			return nil
		})
		if d := time.Since(began); d != 10*time.Minute {
			t.Errorf("timed out after %v", d)
		}
		for r, err := range errs[:3] {
			var to *failure.TimeoutError
			if !errors.As(err, &to) || !slices.Equal(to.Waiting, []int{3}) {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// The call waits for an event that is never reached.
func TestTimeoutWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := open(t, "inproc", 2)
		errs := outcomes(t, groups, func(r int) *backend.Call {
			c := reduceCall(1)
			if r == 0 {
				c.After, c.Timeout = never{}, time.Second
			}
			return c
		})
		var to *failure.TimeoutError
		if !errors.As(errs[0], &to) || to.Running {
			t.Errorf("rank 0: %v", errs[0])
		}
		if !errors.Is(errs[1], failure.ErrTimeout) {
			t.Errorf("rank 1: %v", errs[1])
		}
	})
}

// never is an event that is never reached.
type never struct{}

func (never) Done() (bool, error) { return false, nil }
func (never) Time() time.Time     { return time.Time{} }
func (never) Sync(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Clients that do not prove to have the group's key connect while the group is being made. They do
// not disturb it.
func TestStrangersAreKeptOut(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 2)
	_, addr := testkit.Port(t)
	addrs := [2]string{addr, ""}
	groups := make([]*backendtest.Rank, 2)
	open := func(r int) error {
		o := &host.Options{HostID: fmt.Sprint(r), Member: store.Member{Secret: theSecret}, Listen: addrs[r]}
		g, err := host.New(t.Context(), backend.Config{Rank: r, Size: 2, Control: ranks[r], Timeout: soon}, o)
		groups[r] = newRank(g, ranks[r])
		return err
	}
	first := make(chan error, 1)
	go func() { first <- open(0) }()
	for _, hello := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x28\x00goddp/h2" + strings.Repeat("x", 40), strings.Repeat("\xff", 4096)} {
		dialSoon(t, addr).Write([]byte(hello))
	}
	for _, key := range [][]byte{nil, []byte("guessed, and wrong")} {
		c := dialSoon(t, addr)
		c.SetDeadline(time.Now().Add(soon))
		dialler := handshake.Party{Role: handshake.PeerDialler, HasSecret: true, Rank: 1, Process: handshake.ThisProcess()}
		if _, _, err := handshake.Dial(c, dialler, key); !errors.As(err, new(*handshake.SecretError)) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	if err := errors.Join(open(1), <-first); err != nil {
		t.Fatal(err)
	}
	x := backendtest.Trial{Kind: backend.AllReduce, DType: device.Float32, Count: 100_000}
	if err := errors.Join(backendtest.Each(groups, x.Run), backendtest.CloseAll(groups, soon)); err != nil {
		t.Error(err)
	}
}

// dialSoon dials addr until a process listens there.
func dialSoon(t *testing.T, addr string) net.Conn {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Since(start) > soon {
			t.Fatal(err)
		}
	}
}
