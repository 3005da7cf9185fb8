package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, map[string]func(){"stranger": beStranger}) }

// patience is a limit for events that must happen soon. A test that reaches it has
// failed.
const patience = time.Minute

func withPatience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// listen starts a server that logs nothing unless opts has a logger.
func listen(t testing.TB, opts *ServerOptions) *Server {
	t.Helper()
	if opts == nil {
		opts = &ServerOptions{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s, err := Listen("", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func dial(t testing.TB, addr string, opts *ClientOptions) *Client {
	t.Helper()
	c, err := Dial(withPatience(t), addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// handle has the methods of a Local and of a Client.
type handle interface {
	Store
	Wait(ctx context.Context, keys ...string) error
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	Delete(ctx context.Context, key string) (bool, error)
	Check(ctx context.Context, keys ...string) (bool, error)
	Append(ctx context.Context, key string, value []byte) error
	MultiGet(ctx context.Context, keys ...string) ([][]byte, error)
	MultiSet(ctx context.Context, keys []string, values [][]byte) error
	NumKeys(ctx context.Context) (int64, error)
	Close() error
}

// stores holds all kinds of stores. Each function returns two handles on one table.
var stores = map[string]func(t *testing.T) (a, b handle){
	"local": func(t *testing.T) (a, b handle) {
		l := NewLocal()
		return l, l.handle()
	},
	"client": func(t *testing.T) (a, b handle) {
		s := listen(t, nil)
		return dial(t, s.Addr(), nil), dial(t, s.Addr(), nil)
	},
	"legacy client": func(t *testing.T) (a, b handle) {
		s := listen(t, nil)
		return dial(t, s.Addr(), &ClientOptions{Legacy: true}), dial(t, s.Addr(), nil)
	},
	"client and host": func(t *testing.T) (a, b handle) {
		s := listen(t, nil)
		return dial(t, s.Addr(), nil), s.Local()
	},
}

func eachStore(t *testing.T, f func(t *testing.T, a, b handle)) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			f(t, a, b)
		})
	}
}

func TestOperations(t *testing.T) {
	eachStore(t, func(t *testing.T, a, b handle) {
		ctx := withPatience(t)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// equal compares the result of a call with the expected one.
		equal := func(got any, err error, want any) {
			t.Helper()
			must(err)
			if g, w := fmt.Sprintf("%q", got), fmt.Sprintf("%q", want); g != w {
				t.Fatalf("got %s, want %s", g, w)
			}
		}

		must(a.Set(ctx, "k", []byte("v\x00v")))
		v, err := b.Get(ctx, "k")
		equal(v, err, "v\x00v")
		must(a.Set(ctx, "k", nil)) // an empty value is a value
		v, err = b.Get(ctx, "k")
		equal(v, err, "")

		n, err := a.Add(ctx, "n", 5)
		equal(n, err, 5)
		n, err = b.Add(ctx, "n", -7)
		equal(n, err, -2)
		v, err = a.Get(ctx, "n")
		equal(v, err, "-2")

		for _, step := range []struct{ expected, desired, now string }{
			{"x", "y", "x"}, // absent: left so
			{"", "one", "one"},
			{"two", "three", "one"},
			{"", "three", "one"},
			{"one", "two", "two"},
		} {
			v, err = a.CompareAndSet(ctx, "cas", []byte(step.expected), []byte(step.desired))
			equal(v, err, step.now)
		}

		must(a.Append(ctx, "log", []byte("ab")))
		must(b.Append(ctx, "log", []byte("cd")))
		v, err = a.Get(ctx, "log")
		equal(v, err, "abcd")

		must(a.MultiSet(ctx, []string{"m1", "m2"}, [][]byte{[]byte("1"), nil}))
		vs, err := b.MultiGet(ctx, "m2", "k", "m1", "m1")
		equal(vs, err, []string{"", "", "1", "1"})
		must(a.MultiSet(ctx, nil, nil))
		vs, err = a.MultiGet(ctx)
		equal(vs, err, [][]byte{})

		ok, err := a.Check(ctx, "k", "n", "m1")
		equal(ok, err, true)
		ok, err = a.Check(ctx, "k", "none")
		equal(ok, err, false)
		ok, err = a.Check(ctx)
		equal(ok, err, true)
		must(a.Wait(ctx, "k", "n"))
		must(a.Wait(ctx))

		n, err = b.NumKeys(ctx) // k n cas log m1 m2
		equal(n, err, 6)
		ok, err = a.Delete(ctx, "m1")
		equal(ok, err, true)
		ok, err = b.Delete(ctx, "m1")
		equal(ok, err, false)
		n, err = a.NumKeys(ctx)
		equal(n, err, 5)
	})
}

func TestWaiting(t *testing.T) {
	eachStore(t, func(t *testing.T, a, b handle) {
		ctx := withPatience(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Wait(ctx, "x", "y", "x"); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if v, err := a.Get(ctx, "x"); err != nil || string(v) != "1" {
				t.Errorf("got %q, %v", v, err)
			}
		})
		wg.Go(func() {
			if v, err := a.MultiGet(ctx, "z", "y"); err != nil || fmt.Sprintf("%s", v) != "[3 2]" {
				t.Errorf("got %q, %v", v, err)
			}
		})
		// Other calls on the same handle do not wait for those that wait.
		for _, err := range []error{
			a.Append(ctx, "y", []byte("2")),
			b.Set(ctx, "x", []byte("1")),
			func() error { _, err := a.Add(ctx, "z", 3); return err }(),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		wg.Wait()

		// A key that CompareAndSet creates wakes waiters too.
		wg.Go(func() {
			if err := a.Wait(ctx, "cas"); err != nil {
				t.Error(err)
			}
		})
		if _, err := b.CompareAndSet(ctx, "cas", nil, []byte("v")); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// If the context of a call ends, the error says what the call waited for, and the handle
// can still be used.
func TestContextEnds(t *testing.T) {
	eachStore(t, func(t *testing.T, a, b handle) {
		ctx := withPatience(t)
		for i := range 10 {
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			key := fmt.Sprintf("late%d", i)
			err := a.Wait(short, key)
			cancel()
			var op *OpError
			if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &op) || op.Op != "wait" ||
				!strings.HasSuffix(op.Keys[0], key) || op.Elapsed <= 0 || errors.Is(err, ErrServerLost) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), op.Addr) || !strings.Contains(err.Error(), key) {
				t.Fatalf("message lacks the address or the key: %v", err)
			}
			// The key of the cancelled wait now appears. No later call may take this for
			// its reply.
			if err := b.Set(ctx, key, nil); err != nil {
				t.Fatal(err)
			}
			if n, err := a.NumKeys(ctx); err != nil || n != int64(i+1) {
				t.Fatalf("NumKeys %d, %v; want %d", n, err, i+1)
			}
		}
		cause := errors.New("the job is over")
		causeCtx, cancel := context.WithCancelCause(ctx)
		cancel(cause)
		for _, err := range []error{a.Wait(causeCtx, "never"), a.Set(causeCtx, "k", nil)} {
			if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v", err)
			}
		}
	})
}

func TestCloseHandle(t *testing.T) {
	for _, name := range []string{"local", "client", "legacy client"} {
		t.Run(name, func(t *testing.T) {
			a, b := stores[name](t)
			ctx := withPatience(t)
			started, waited := make(chan struct{}), make(chan error)
			go func() {
				close(started)
				waited <- a.Wait(ctx, "never")
			}()
			<-started
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-waited; !errors.Is(err, ErrClosed) {
				t.Errorf("pending wait: %v", err)
			}
			if err := a.Set(ctx, "k", nil); !errors.Is(err, ErrClosed) {
				t.Errorf("later set: %v", err)
			}
			if err := b.Set(ctx, "k", nil); err != nil {
				t.Errorf("other handle: %v", err)
			}
		})
	}
}

// A view's key k is the key "prefix/k" of the store.
func TestPrefix(t *testing.T) {
	s := NewLocal()
	p := Prefix(Prefix(s, "a"), "b")
	for range 2 {
		if _, err := p.Add(t.Context(), "n", 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"k": "v", "n": "2"} {
		if v, err := s.Get(t.Context(), "a/b/"+key); err != nil || string(v) != want {
			t.Errorf("%s is %q, %v, want %s", key, v, err, want)
		}
		if v, err := p.Get(t.Context(), key); err != nil || string(v) != want {
			t.Errorf("%s of the view is %q, %v, want %s", key, v, err, want)
		}
	}
}

// The caller may change its slices after the call.
func TestValuesAreCopies(t *testing.T) {
	eachStore(t, func(t *testing.T, a, _ handle) {
		ctx := withPatience(t)
		in := []byte("value")
		if err := a.Set(ctx, "k", in); err != nil {
			t.Fatal(err)
		}
		in[0] = '!'
		out, err := a.Get(ctx, "k")
		if err != nil || string(out) != "value" {
			t.Fatalf("got %q, %v", out, err)
		}
		out[0] = '?'
		if err := a.Append(ctx, "k", []byte("s")); err != nil {
			t.Fatal(err)
		}
		if out, err = a.Get(ctx, "k"); err != nil || string(out) != "values" {
			t.Fatalf("got %q, %v", out, err)
		}
	})
}

// Many goroutines use one handle. Every increment counts once, and each goroutine waits
// for keys that others make.
func TestConcurrent(t *testing.T) {
	eachStore(t, func(t *testing.T, a, b handle) {
		ctx := withPatience(t)
		const workers, rounds = 8, 10
		var wg sync.WaitGroup
		for w := range workers {
			s := []handle{a, b}[w%2]
			wg.Go(func() {
				for r := range rounds {
					n, err := s.Add(ctx, fmt.Sprint("round", r), 1)
					if err == nil && n == workers {
						err = s.Set(ctx, fmt.Sprint("go", r), bytes.Repeat([]byte("x"), 100_000))
					}
					if err == nil {
						_, err = s.Get(ctx, fmt.Sprint("go", r))
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if n, err := a.NumKeys(ctx); err != nil || n != 2*rounds {
			t.Errorf("NumKeys %d, %v; want %d", n, err, 2*rounds)
		}
	})
}

func TestRounded(t *testing.T) {
	for d, want := range map[time.Duration]string{2_993_490_000: "3s", 1234567: "1.2ms", 999: "1µs", 83 * time.Second: "1m23s", 0: "0s"} {
		if got := rounded(d).String(); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

func TestErrorMessageShortensKeys(t *testing.T) {
	err := &OpError{"wait", []string{"a", "b", "c", "d", "e", "f"}, "127.0.0.1:29500", 1500 * time.Millisecond, ErrServerLost}
	const want = `store 127.0.0.1:29500: wait "a" "b" "c" "d" and 2 more: server lost (after 1.5s)`
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}
