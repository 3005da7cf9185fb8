package election

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/wire"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == Program {
		if err := Serve(context.Background(), os.Stdin, os.Stdout, openFake); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.Main(m, nil)
}

// fake is an election that this agent wins, unless its address is that of the elected agent: "other".
type fake struct {
	log     *os.File // takes a line for each call
	expired chan struct{}
}

func openFake(_ context.Context, o Options) (Election, error) {
	if o.Name == "" {
		return nil, errors.New("no name")
	}
	log, err := os.OpenFile(o.CAFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	return &fake{log: log, expired: make(chan struct{})}, err
}

func (f *fake) Elect(ctx context.Context, addr, dead string) (string, Term, error) {
	fmt.Fprintf(f.log, "elect %s %s\n", addr, dead)
	switch addr {
	case "second":
		return "other", nil, nil
	case "never":
		<-ctx.Done()
		return "", nil, ctx.Err()
	}
	return "", f, nil
}

func (f *fake) State() State          { return State{Epoch: 3, Restarts: 1} }
func (f *fake) Over() <-chan struct{} { return f.expired }

func (f *fake) Save(_ context.Context, s State) error {
	fmt.Fprintf(f.log, "save %+v\n", s)
	if s.Epoch > 4 {
		close(f.expired)
		return ErrOver
	}
	return nil
}

func (f *fake) Resign(_ context.Context, ended bool) error {
	fmt.Fprintf(f.log, "resign %v\n", ended)
	select {
	case <-f.expired:
	default:
		close(f.expired)
	}
	return nil
}

func (f *fake) Close() error {
	fmt.Fprintln(f.log, "close")
	return f.log.Close()
}

// start starts this test binary as Program. It returns the election, and a function that ends the process
// and returns the calls that it had.
func start(t *testing.T) (*Process, func() string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, Program)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	log := filepath.Join(dir, "log")
	e, err := Start(t.Context(), Options{Name: "job", CAFile: log})
	if err != nil {
		t.Fatal(err)
	}
	return e, func() string {
		t.Helper()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(log)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
}

func awaitOver(t *testing.T, term Term) {
	t.Helper()
	select {
	case <-term.Over():
	case <-time.After(testkit.Soon):
		t.Fatal("the term is not over")
	}
}

func TestProcessHoldsTheElection(t *testing.T) {
	p, end := start(t)
	if host, term, err := p.Elect(t.Context(), "second", "dead:1"); host != "other" || term != nil || err != nil {
		t.Errorf("elected %q, %v, %v", host, term, err)
	}
	host, term, err := p.Elect(t.Context(), "first", "")
	if host != "" || term == nil || err != nil || term.State() != (State{Epoch: 3, Restarts: 1}) {
		t.Fatalf("elected %q, %+v, %v", host, term, err)
	}
	if err := term.Save(t.Context(), State{Epoch: 4}); err != nil {
		t.Error(err)
	}
	select {
	case <-term.Over():
		t.Error("the term is over")
	default:
	}
	if err := term.Save(t.Context(), State{Epoch: 5}); !errors.Is(err, ErrOver) {
		t.Errorf("got error %v", err)
	}
	awaitOver(t, term)
	if got, want := end(), "elect second dead:1\nelect first \nsave {Epoch:4 Restarts:0 Nodes:0}\nsave {Epoch:5 Restarts:0 Nodes:0}\nresign false\nclose\n"; got != want {
		t.Errorf("the process was asked to\n%swant\n%s", got, want)
	}
}

// A term is over when golaunch-etcd is killed. It is also over when golaunch-etcd is stopped, because its lease may
// expire meanwhile. Then another process can be started.
func TestTermEndsWithTheProcess(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(sig.String(), func(t *testing.T) {
			if sig == syscall.SIGSTOP {
				testkit.Long(t)
			}
			p, _ := start(t)
			defer p.Close()
			_, term, err := p.Elect(t.Context(), "first", "")
			if err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			awaitOver(t, term)
			if err := term.Save(t.Context(), State{}); !errors.Is(err, ErrEnded) {
				t.Errorf("got error %v", err)
			}
		})
	}
}

// A golaunch that is stopped sends no heartbeats, and does not stay the host.
func TestServeResignsWithoutHeartbeats(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	synctest.Test(t, func(t *testing.T) {
		in, toServe := io.Pipe()
		fromServe, out := io.Pipe()
		served := make(chan error, 1)
		go func() { served <- Serve(t.Context(), in, out, openFake) }()
		responses := make(chan response, 100)
		go func() {
			defer close(responses)
			buffered := bufio.NewReader(fromServe)
			for {
				var r response
				if wire.Decode(buffered, maxMessage, &r) != nil {
					return
				}
				responses <- r
			}
		}()
		say := func(r request) response {
			if _, err := toServe.Write(wire.Encode(r)); err != nil {
				t.Error(err)
			}
			return <-responses
		}
		say(request{Open: &Options{Name: "job", CAFile: log, TTL: 3 * time.Second}})
		if r := say(request{Elect: &electRequest{Addr: "first"}}); !r.Elected {
			t.Fatalf("response %+v", r)
		}
		for range 10 {
			time.Sleep(2 * time.Second)
			if r := say(request{Beat: true}); !r.Beat {
				t.Errorf("response %+v, want a heartbeat", r)
			}
		}
		start := time.Now()
		if r := <-responses; !r.Expired || time.Since(start) != 3*time.Second {
			t.Errorf("response %+v after %v of silence", r, time.Since(start))
		}
		if r := say(request{Save: &State{Epoch: 1}}); !r.IsOver {
			t.Errorf("response %+v to a former host", r)
		}
		toServe.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		out.Close()
		<-responses
	})
	if text, err := os.ReadFile(log); err != nil || string(text) != "elect first \nresign false\nclose\n" {
		t.Errorf("it was asked to\n%s%v", text, err)
	}
}

func TestElectEndsWithItsContext(t *testing.T) {
	p, _ := start(t)
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := p.Elect(ctx, "never", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Start(t.Context(), Options{Name: "job"}); err == nil || !strings.Contains(err.Error(), "go install github.com/goddp/goddp/cmd/golaunch-etcd@latest") {
		t.Errorf("without the program: %v", err)
	}
	p, end := start(t)
	defer end()
	if _, err := p.ask(t.Context(), request{Open: &Options{}}); err == nil || err.Error() != "no name" {
		t.Errorf("an error of the election: %v", err)
	}
}
