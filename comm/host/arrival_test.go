package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/store"
)

// TestAbsent makes groups to which some ranks do not come: every other one
// learns which, whether its own time is over first or another's, and those that
// come later that they are late.
func TestAbsent(t *testing.T) {
	const size, short, long = 4, 100 * time.Millisecond, time.Minute
	for name, o := range map[string]func() *host.Options{
		"hub":   func() *host.Options { return &host.Options{Hub: host.NewHub()} },
		"links": func() *host.Options { return nil },
	} {
		for _, absent := range [][]int{{0}, {3}, {1, 2}, {0, 1, 2}} {
			t.Run(fmt.Sprint(name, absent), func(t *testing.T) {
				kv, opts := store.NewLocal(), o()
				patient := 3 // has a long time; where it is absent, all have a short one
				var wg sync.WaitGroup
				for r := range size {
					if slices.Contains(absent, r) {
						continue
					}
					timeout := short
					if r == patient && len(absent) < size-1 {
						timeout = long
					}
					wg.Go(func() {
						ctx, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("the wait does not end"))
						defer cancel()
						_, err := host.New(ctx, backend.Config{Rank: r, Size: size, Store: kv, Timeout: timeout}, opts)
						var e *backend.AbsentError
						if !errors.As(err, &e) || !slices.Equal(e.Ranks, absent) || !errors.Is(err, backend.ErrTimeout) {
							t.Errorf("rank %d: %v, want a timeout that names ranks %v", r, err, absent)
						}
						if err != nil && (strings.Count(err.Error(), "not come") != 1 || !strings.Contains(err.Error(), ": timed out after 100ms: rank")) {
							t.Errorf("rank %d: %q does not say once who has not come, and for how long it was waited", r, err)
						}
					})
				}
				wg.Wait()
				late := backend.Config{Rank: absent[0], Size: size, Store: kv, Timeout: time.Minute}
				if _, err := host.New(t.Context(), late, opts); err == nil || strings.Count(err.Error(), "could not join") != 1 {
					t.Errorf("rank %d, too late: %v, want the first refusal", absent[0], err)
				}
			})
		}
	}
}

// silent is a store that does not say who came.
type silent struct{ store.Store }

var errSilent = errors.New("no answer")

func (s silent) Get(ctx context.Context, key string) ([]byte, error) {
	if key == "came" {
		return nil, errSilent
	}
	return s.Store.Get(ctx, key)
}

// TestAbsentUnknown times out at a store that fails.
func TestAbsentUnknown(t *testing.T) {
	_, err := host.New(t.Context(), backend.Config{Rank: 0, Size: 2, Store: silent{store.NewLocal()}, Timeout: 50 * time.Millisecond}, nil)
	if !errors.Is(err, backend.ErrTimeout) || !errors.Is(err, errSilent) {
		t.Errorf("%v, want the timeout and why nobody is named", err)
	}
}

// TestRefusal has a rank that cannot join, and not for want of others, who learn
// why.
func TestRefusal(t *testing.T) {
	kv := store.NewLocal()
	for r, o := range []*host.Options{{Listen: "256.0.0.1:0"}, nil, nil} {
		_, err := host.New(t.Context(), backend.Config{Rank: r, Size: 3, Store: kv, Timeout: time.Minute}, o)
		if err == nil || !strings.Contains(err.Error(), "256.0.0.1") {
			t.Errorf("rank %d: %v, want rank 0's reason", r, err)
		} else if told := ": rank 0 could not join: "; strings.Contains(err.Error(), told) != (r > 0) || strings.Count(err.Error(), "could not join") != min(r, 1) {
			t.Errorf("rank %d: %v, want once %q if it was told", r, err, told)
		}
		if e := (*backend.JoinError)(nil); errors.As(err, &e) != (r > 0) || r > 0 && e.Rank != 0 {
			t.Errorf("rank %d: %v does not tell rank 0's failure from its own", r, err)
		}
		if errors.Is(err, backend.ErrTimeout) {
			t.Errorf("rank %d: %v is a timeout", r, err)
		}
	}
}

// A rank whose group broke, which is being split, leaves it to that one to tell why,
// unless it was closed on this rank alone.
func TestRefusalOfASplit(t *testing.T) {
	for why, tells := range map[error]bool{
		&backend.AbortedError{By: 1, Err: errors.New("no luck")}: false, &backend.TimeoutError{Waiting: []int{7}}: false, backend.ErrClosed: true,
	} {
		kv := store.NewLocal()
		life, end := context.WithCancelCause(t.Context())
		end(why)
		ctx, release := backend.BoundSplit(t.Context(), life)
		defer release()
		if _, err := host.New(ctx, backend.Config{Rank: 0, Size: 2, Store: kv, Timeout: soon}, nil); !errors.As(err, new(*backend.BrokenError)) || !errors.Is(err, why) || errors.As(err, new(*backend.AbsentError)) {
			t.Errorf("%v, want that the group broke: %v", err, why)
		}
		if told, err := kv.CompareAndSet(t.Context(), "failed", nil, []byte("nobody")); err != nil || (string(told) != "nobody") != tells {
			t.Errorf("%v: the others were told %q, %v", why, told, err)
		}
	}
}

// deaf is a store that is slow to tell a refusal to who waits for one.
type deaf struct{ store.Store }

func (d deaf) Get(ctx context.Context, key string) ([]byte, error) {
	if key == "failed" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.Store.Get(ctx, key)
}

// A rank that comes when the others have given up finds nobody at their addresses, and
// says why that is.
func TestTooLate(t *testing.T) {
	kv := store.NewLocal()
	var wg sync.WaitGroup
	for r := range 2 {
		wg.Go(func() {
			_, err := host.New(t.Context(), backend.Config{Rank: r, Size: 3, Store: kv, Timeout: 100 * time.Millisecond}, nil)
			if !errors.Is(err, backend.ErrTimeout) {
				t.Errorf("rank %d: %v, want a timeout", r, err)
			}
		})
	}
	wg.Wait()
	_, err := host.New(t.Context(), backend.Config{Rank: 2, Size: 3, Store: deaf{kv}, Timeout: soon}, nil)
	if err == nil || strings.Count(err.Error(), "could not join") != 1 {
		t.Errorf("rank 2, too late: %v, want the first refusal", err)
	}
	// What is wrong with the rank itself is said as well.
	_, err = host.New(t.Context(), backend.Config{Rank: 2, Size: 3, Store: deaf{kv}, Timeout: soon}, &host.Options{Listen: "256.0.0.1:0"})
	if err == nil || strings.Count(err.Error(), "could not join") != 1 || !strings.Contains(err.Error(), "256.0.0.1") {
		t.Errorf("rank 2, too late, and listening nowhere: %v, want both", err)
	}
}

// lost is a store whose server went away in the middle, and is another one by now.
type lost struct{ deaf }

func (l lost) CompareAndSet(context.Context, string, []byte, []byte) ([]byte, error) {
	return nil, &store.OpError{Op: "compareandset", Keys: []string{"failed"}, Err: store.ErrServerLost}
}

func (l lost) Get(ctx context.Context, key string) ([]byte, error) {
	if key == "failed" {
		return l.deaf.Get(ctx, key)
	}
	return nil, &store.OpError{Op: "get", Keys: []string{key}, Err: store.ErrServerLost}
}

// A rank that lost the store says so, and nothing to the next one's ranks: who can meet
// the others again there goes by the error.
func TestALostStoreIsNoRefusal(t *testing.T) {
	kv := store.NewLocal()
	join := func() error {
		_, err := host.New(t.Context(), backend.Config{Rank: 1, Size: 2, Store: lost{deaf{kv}}, Timeout: soon}, nil)
		return err
	}
	if err := join(); !errors.Is(err, store.ErrServerLost) {
		t.Errorf("got %v, want that the store is lost", err)
	}
	if said, err := kv.Check(t.Context(), "failed"); said || err != nil {
		t.Errorf("the other ranks are told: %v, %v", said, err)
	}
	if err := kv.Set(t.Context(), "failed", []byte(`{"Rank": 0, "Text": "no luck"}`)); err != nil {
		t.Fatal(err)
	}
	if err := join(); !errors.Is(err, store.ErrServerLost) {
		t.Errorf("behind another rank's refusal: got %v, want that the store is lost", err)
	}
}

// hiccup is a store to which the connection breaks in the first wait for a key.
type hiccup struct {
	store.Store
	key    string
	broken *atomic.Bool
}

func (h hiccup) Get(ctx context.Context, key string) ([]byte, error) {
	if key == h.key && h.broken.CompareAndSwap(false, true) {
		return nil, &store.OpError{Op: "get", Keys: []string{key}, Err: store.ErrServerLost}
	}
	return h.Store.Get(ctx, key)
}

// A rank whose own connection to the store breaks tells the others, who would wait for
// it, and is no rank that has lost the store. One that waits for what they tell hears it
// after that as well.
func TestABrokenConnectionIsARefusal(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("the wait does not end"))
	defer cancel()
	kv := store.NewLocal()
	var errs [2]error
	var wg sync.WaitGroup
	for r, key := range []string{"failed", "token"} {
		wg.Go(func() {
			cfg := backend.Config{Rank: r, Size: 3, Store: hiccup{kv, key, new(atomic.Bool)}, Timeout: time.Minute}
			_, errs[r] = host.New(ctx, cfg, nil)
		})
	}
	wg.Wait()
	if err := errs[0]; err == nil || !strings.Contains(err.Error(), "rank 1 could not join") {
		t.Errorf("rank 0: %v, want that it is told of rank 1", err)
	}
	if err := errs[1]; err == nil || errors.Is(err, store.ErrServerLost) || !strings.Contains(err.Error(), "server lost") {
		t.Errorf("rank 1: %v, want a connection that broke", err)
	}
}
