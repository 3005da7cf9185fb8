package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
	"github.com/goddp/goddp/internal/backend/host"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
)

// soon bounds waits for what should happen at once, on a busy machine.
const soon = 20 * time.Second

// outcomes starts one call on every rank for which calls returns one, and returns the ranks'
// errors.
func outcomes(t *testing.T, groups []*host.Group, calls func(r int) *backend.Call) []error {
	t.Helper()
	errs := make([]error, len(groups))
	each(groups, func(r int, g *host.Group) error {
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

// Rank 1 calls something else than ranks 0 and 2. All ranks get a MismatchError, and no later call
// is started.
func TestMismatchedCallsFailOnAllRanks(t *testing.T) {
	f32 := func(n int) device.Tensor { return device.HostTensor(make([]float32, n), device.Invalid) }
	for _, n := range []int{10, 100_000} {
		for what, other := range map[string]*backend.Call{
			"size":      {Seq: 1, Kind: backend.AllReduce, Dst: f32(n + 1), Src: f32(n + 1)},
			"kind":      {Seq: 1, Kind: backend.Broadcast, Root: 1, Dst: f32(n), Src: f32(n)},
			"type":      {Seq: 1, Kind: backend.AllReduce, Dst: device.HostTensor(make([]int32, n), device.Invalid), Src: device.HostTensor(make([]int32, n), device.Invalid)},
			"reduction": {Seq: 1, Kind: backend.AllReduce, Op: backend.Max, Dst: f32(n), Src: f32(n)},
			"number":    {Seq: 2, Kind: backend.AllReduce, Dst: f32(n), Src: f32(n)},
			"barrier":   {Seq: 1, Kind: backend.Barrier},
		} {
			for name, open := range transports {
				t.Run(fmt.Sprintf("%s/%s/%d", name, what, n), func(t *testing.T) {
					groups := open(t, 3)
					errs := outcomes(t, groups, func(r int) *backend.Call {
						if r == 1 {
							return other
						}
						return reduceCall(n)
					})
					for r, err := range errs {
						var m *backend.MismatchError
						if !errors.As(err, &m) {
							t.Fatalf("rank %d: %v", r, err)
						}
						if m.Mine == m.Theirs {
							t.Errorf("rank %d: both sides of the mismatch are %v", r, m.Mine)
						}
						if _, err := groups[r].Start(reduceCall(n)); err == nil {
							t.Errorf("rank %d: the group is still in use", r)
						}
					}
				})
			}
		}
	}
}

// The ranks disagree on the lengths of blocks whose total is the same.
func TestMismatchedCountsFailOnAllRanks(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 3)
			errs := outcomes(t, groups, func(r int) *backend.Call {
				counts := []int{1, 30_000, 2}
				if r == 2 {
					counts = []int{1, 2, 30_000}
				}
				return &backend.Call{
					Kind: backend.AllGather, Counts: counts, Timeout: soon,
					Src: device.HostTensor(make([]int32, counts[r]), device.Invalid), Dst: device.HostTensor(make([]int32, 30_003), device.Invalid),
				}
			})
			for r, err := range errs {
				if m := (*backend.MismatchError)(nil); !errors.As(err, &m) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// The receiver expects another number of elements than was sent.
func TestMismatchedMessageFails(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 2)
			errs := outcomes(t, groups, func(r int) *backend.Call {
				x := device.HostTensor(make([]float32, 10+r), device.Invalid)
				if r == 0 {
					return &backend.Call{Kind: backend.Send, Root: 1, Src: x, Timeout: soon}
				}
				return &backend.Call{Kind: backend.Recv, Root: 0, Dst: x, Timeout: soon}
			})
			if m := (*backend.MismatchError)(nil); !errors.As(errs[1], &m) {
				t.Errorf("receiver: %v", errs[1])
			}
		})
	}
}

// Rank 1 does not call. The other ranks' timeouts name it, for small and large calls, and later
// calls fail with the same cause.
func TestTimeoutNamesTheAbsentRank(t *testing.T) {
	for name, open := range transports {
		for _, n := range []int{1, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				groups := open(t, 3)
				behind := make([]backend.Task, 3)
				errs := outcomes(t, groups, func(r int) *backend.Call {
					if r == 1 {
						return nil
					}
					c := reduceCall(n)
					c.Timeout = 300*time.Millisecond + time.Duration(r)*time.Second
					return c
				})
				for _, r := range []int{0, 2} {
					var to *backend.TimeoutError
					var in *backend.CallError
					if !errors.As(errs[r], &to) || !errors.Is(errs[r], backend.ErrTimeout) || !errors.As(errs[r], &in) {
						t.Fatalf("rank %d: %v", r, errs[r])
					}
					if in.Rank != r || in.Name != "bucket 3" || !slices.Contains(to.Waiting, 1) || to.State != backend.Running {
						t.Errorf("rank %d: %v", r, errs[r])
					}
				}
				if _, err := groups[1].Start(reduceCall(n)); behind[1] == nil && !errors.Is(err, backend.ErrTimeout) {
					// Rank 1 may not know yet: then its next call fails.
					if err == nil {
						err = outcomes(t, groups[1:2], func(int) *backend.Call { return reduceCall(n) })[0]
					}
					if !errors.Is(err, backend.ErrTimeout) {
						t.Errorf("rank 1: %v", err)
					}
				}
			})
		}
	}
}

// Ranks of one process wait only in ways that testing/synctest can fast-forward.
func TestTimeoutOnAFakeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := transports["inproc"](t, 4)
		began := time.Now()
		errs := make([]error, 4)
		each(groups[:3], func(r int, g *host.Group) error {
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
			var callErr *backend.CallError
			if err := b.Sync(context.Background()); !errors.Is(err, backend.ErrTimeout) || !errors.As(err, &callErr) || callErr.Call.Seq != 2 {
				t.Errorf("rank %d: the call behind: %v", r, err)
			}
			return nil
		})
		if d := time.Since(began); d != 10*time.Minute {
			t.Errorf("timed out after %v", d)
		}
		for r, err := range errs[:3] {
			var to *backend.TimeoutError
			if !errors.As(err, &to) || !slices.Equal(to.Waiting, []int{3}) {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// The call waits for an event that is never reached.
func TestTimeoutWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := transports["inproc"](t, 2)
		errs := outcomes(t, groups, func(r int) *backend.Call {
			c := reduceCall(1)
			if r == 0 {
				c.After, c.Timeout = never{}, time.Second
			}
			return c
		})
		var to *backend.TimeoutError
		if !errors.As(errs[0], &to) || to.State != backend.Queued {
			t.Errorf("rank 0: %v", errs[0])
		}
		if !errors.Is(errs[1], backend.ErrTimeout) {
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

// Rank 0 aborts. The calls of all ranks end with its cause.
func TestAbortEndsCallsOnAllRanks(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 3)
			cause := errors.New("enough")
			time.AfterFunc(50*time.Millisecond, func() { groups[0].Abort(cause) })
			errs := outcomes(t, groups, func(r int) *backend.Call {
				if r == 1 {
					return nil
				}
				return reduceCall(5)
			})
			if !errors.Is(errs[0], cause) {
				t.Errorf("rank 0: %v", errs[0])
			}
			if want := ": process group aborted: by rank 0: enough"; !errors.Is(errs[2], backend.ErrAborted) || !strings.HasSuffix(errs[2].Error(), want) {
				t.Errorf("rank 2: %q, want %q at its end", errs[2], want)
			}
			if _, err := groups[0].Start(reduceCall(5)); !errors.Is(err, cause) {
				t.Errorf("after the abort: %v", err)
			}
		})
	}
}

// Rank 1 closes its group right after its last call. The other ranks complete that call; their next
// collective or receive fails because rank 1 left.
func TestCallAfterAPeerLeftFails(t *testing.T) {
	for name, open := range transports {
		for _, n := range []int{100, 200_000} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				groups := open(t, 3)
				errs := outcomes(t, groups, func(r int) *backend.Call { return reduceCall(n) })
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				if err := groups[1].Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := groups[1].Start(reduceCall(1)); !errors.Is(err, backend.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
				errs = outcomes(t, groups, func(r int) *backend.Call {
					c := reduceCall(n)
					c.Seq = 2
					switch r {
					case 0:
						return c
					case 2:
						return &backend.Call{Kind: backend.Recv, Root: 1, Dst: c.Dst, Timeout: soon}
					}
					return nil
				})
				for _, r := range []int{0, 2} {
					var lost *backend.PeerLostError
					if !errors.As(errs[r], &lost) || lost.Peer != 1 || !lost.Left {
						t.Errorf("rank %d: %v", r, errs[r])
					}
				}
			})
		}
	}
}

// A call is pending that never ends.
func TestCloseEndsPendingCalls(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 2)
			task, err := groups[0].Start(reduceCall(1))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := groups[0].Close(ctx); !errors.Is(err, backend.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("close: %v", err)
			}
			if err := task.Sync(t.Context()); !errors.Is(err, backend.ErrClosed) {
				t.Errorf("the call: %v", err)
			}
		})
	}
}

// A group is split into two, and all three are used.
func TestSplitGroupsWorkSideBySide(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 4)
			halves := [][]*host.Group{splitOff(t, groups, 0, 3), splitOff(t, groups, 2, 1)}
			for _, gs := range [][]*host.Group{groups, halves[0], halves[1]} {
				if err := exercise(gs, shared, 1, backend.AllReduce, backend.Sum, device.Float32, 10_000, 0, true); err != nil {
					t.Fatal(err)
				}
			}
			for _, gs := range halves {
				if err := each(gs, func(_ int, g *host.Group) error { return g.Close(t.Context()) }); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// splitOff makes a group of the given ranks. members[i] becomes rank i.
func splitOff(t *testing.T, all []*host.Group, members ...int) []*host.Group {
	t.Helper()
	groups := make([]*host.Group, len(members))
	err := each(all, func(r int, g *host.Group) error {
		at := slices.Index(members, r)
		if at < 0 {
			return nil
		}
		control, _, err := g.Control().Make(t.Context(), fmt.Sprint("of ranks ", members), members, nil)
		if err != nil {
			return err
		}
		b, err := g.Split(t.Context(), backend.Config{Rank: at, Size: len(members), Control: control, Timeout: soon}, members)
		if err != nil {
			return err
		}
		groups[at] = b.(*host.Group)
		t.Cleanup(func() { groups[at].Close(context.Background()) })
		_, err = control.Gather(t.Context(), coordinator.ReadyKey, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// Ranks 3 and 1 fail as ranks 0 and 1 of a subgroup. The errors name them as ranks 3 and 1. A
// failure also breaks the group of all ranks; a Close or an Abort by the program does not.
func TestFailureInASubgroupNamesRanksOfTheJob(t *testing.T) {
	for name, open := range transports {
		for what, c := range map[string]struct {
			fail     func(rank1 *host.Group)
			cause    func(err error) bool
			confined bool
		}{
			"leaves": {
				fail: func(g *host.Group) { g.Close(t.Context()) },
				cause: func(err error) bool {
					var lost *backend.PeerLostError
					return errors.As(err, &lost) && lost.Peer == 1 && lost.Left
				},
			},
			"differs": {
				fail: func(g *host.Group) { call(g, &backend.Call{Seq: 1, Kind: backend.Barrier}) },
				cause: func(err error) bool {
					var m *backend.MismatchError
					return errors.As(err, &m) && m.Rank+m.Peer == 4
				},
			},
			"aborts": {
				fail: func(g *host.Group) { g.Abort(nil) },
				cause: func(err error) bool {
					var aborted *backend.AbortedError
					return errors.As(err, &aborted) && aborted.By == 1
				},
				confined: true,
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				all := open(t, 4)
				part := splitOff(t, all, 3, 1)
				var wg sync.WaitGroup
				wg.Go(func() { c.fail(part[1]) })
				err := call(part[0], reduceCall(100_000))
				wg.Wait()
				var callErr *backend.CallError
				if !c.cause(err) {
					t.Errorf("rank 3: %v", err)
				} else if _, late := part[0].Start(reduceCall(1)); late != err && (!errors.As(err, &callErr) || callErr.Rank != 3 || callErr.Group != part[0].Control().Name) {
					t.Errorf("%v does not name rank 3, and the group", err)
				}
				if c.confined {
					err = exercise(all, shared, 1, backend.AllReduce, backend.Sum, device.Float32, 10_000, 0, true)
				} else if err = call(all[0], reduceCall(100_000)); c.cause(err) {
					err = nil
				}
				if err != nil {
					t.Errorf("the group of all ranks: %v", err)
				}
			})
		}
	}
}

// Clients that do not prove to have the group's key connect while the group is being made. They do
// not disturb it.
func TestConnectionsOfStrangersAreIgnored(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 2)
	addrs := [2]string{freeAddr(t), ""}
	groups := make([]*host.Group, 2)
	open := func(r int) error {
		var err error
		cfg := backend.Config{Rank: r, Size: 2, Control: ranks[r], Timeout: soon}
		groups[r], err = host.New(t.Context(), cfg, &host.Options{HostID: fmt.Sprint(r), Listen: addrs[r]})
		return err
	}
	first := make(chan error, 1)
	go func() { first <- open(0) }()
	for _, hello := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x28\x00goddp/h2" + strings.Repeat("x", 40), strings.Repeat("\xff", 4096)} {
		c := dialSoon(t, addrs[0])
		c.Write([]byte(hello))
	}
	if err := errors.Join(open(1), <-first); err != nil {
		t.Fatal(err)
	}
	if err := exercise(groups, private, 1, backend.AllReduce, backend.Sum, device.Float32, 100_000, 0, false); err != nil {
		t.Error(err)
	}
	each(groups, func(_ int, g *host.Group) error { return g.Close(t.Context()) })
}

// freeAddr returns an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// dialSoon dials addr until somebody listens there.
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

// The host cannot address memory of a device.
func TestStartRefusesDeviceMemory(t *testing.T) {
	groups := transports["inproc"](t, 1)
	defer func() {
		if e, ok := recover().(*host.MemoryError); !ok || e.Call.Kind != backend.AllReduce {
			t.Errorf("panic with %v", e)
		}
	}()
	x := device.NewTensor(device.DeviceBuffer(4096, 16, nil), device.Float32, 4)
	groups[0].Start(&backend.Call{Kind: backend.AllReduce, Dst: x, Src: x})
}

// Abort of a group that is already breaking for another cause returns only when the peers know that
// cause.
func TestAbortReturnsWhenPeersKnow(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 2)
	broke, release := make(chan struct{}), make(chan struct{})
	groups := make([]*host.Group, 2)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for r := range groups {
		wg.Go(func() {
			cfg := backend.Config{Rank: r, Size: 2, Control: ranks[r], Timeout: soon}
			if r == 1 {
				cfg.Log = backendtest.HoldBreaking(broke, release)
			}
			groups[r], errs[r] = host.New(t.Context(), cfg, nil)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { groups[1].Abort(errors.New("first")) })
	<-broke
	wg.Go(func() {
		groups[1].Abort(errors.New("second"))
		select {
		case <-release:
		default:
			t.Error("the second Abort returned before the peers knew the first cause")
		}
	})
	time.Sleep(20 * time.Millisecond) // long enough for an Abort that does not wait to return
	close(release)
	wg.Wait()
	for _, g := range groups {
		g.Close(t.Context())
	}
}

// A rank waits in Split for another one that does not call it. The wait ends when the parent group
// breaks.
func TestSplitEndsWhenTheParentBreaks(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 2)
			failed := make(chan error, 1)
			err := each(groups, func(r int, g *host.Group) error {
				control, _, err := g.Control().Make(t.Context(), "part", []int{0, 1}, nil)
				if err != nil || r == 0 {
					return err
				}
				go func() {
					cfg := backend.Config{Rank: 1, Size: 2, Control: control, Timeout: time.Hour}
					_, err := g.Split(context.Background(), cfg, []int{0, 1})
					failed <- err
				}()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			groups[0].Abort(errors.New("no more"))
			select {
			case err := <-failed:
				if err == nil || !strings.Contains(err.Error(), "no more") {
					t.Errorf("%v, want why the group broke", err)
				}
			case <-time.After(soon):
				t.Error("it waits on")
			}
		})
	}
}

// A peer that does not read for longer than a dead host would be tolerated is not lost: the data
// waits for it.
func TestPeerThatReadsLateIsNotLost(t *testing.T) {
	if testing.Short() {
		t.Skip("takes longer than a host may be silent")
	}
	t.Parallel()
	const elements = 8 << 20 // more than the kernel buffers
	groups := transports["tcp"](t, 2)
	err := each(groups, func(r int, g *host.Group) error {
		x := private(g, device.Float32, elements)
		if r == 0 {
			backendtest.Put(x, elements-1, 7)
			return call(g, &backend.Call{Kind: backend.Send, Root: 1, Src: x, Timeout: time.Minute})
		}
		time.Sleep(25 * time.Second)
		if err := call(g, &backend.Call{Kind: backend.Recv, Root: 0, Dst: x, Timeout: time.Minute}); err != nil {
			return err
		}
		return expect("received", x, func(i int) float64 {
			if i == elements-1 {
				return 7
			}
			return 0
		})
	})
	if err != nil {
		t.Error(err)
	}
}
