package launcher

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"
)

// blockedConsole is a console whose writes block until open is closed.
type blockedConsole struct {
	bytes.Buffer
	started, open chan struct{}
}

func newBlockedConsole() *blockedConsole {
	return &blockedConsole{started: make(chan struct{}, 100), open: make(chan struct{})}
}

func (g *blockedConsole) Write(p []byte) (int, error) {
	g.started <- struct{}{}
	<-g.open
	return g.Buffer.Write(p)
}

// If the console blocks, logf does not wait, and write waits only until its channel is
// closed. The console writes the queue in order afterwards.
func TestConsoleThatBlocks(t *testing.T) {
	g := newBlockedConsole()
	c := &console{stdout: g, stderr: g, grace: soon}
	c.logf("first")
	<-g.started
	c.logf("second")
	closed := make(chan struct{})
	close(closed)
	if c.write(g, []byte("a worker's\n"), closed) {
		t.Error("the console has taken what it has not")
	}
	c.logf("third")
	close(g.open)
	c.close(nil)
	if want := "golaunch: first\ngolaunch: second\na worker's\ngolaunch: third\n"; g.String() != want {
		t.Errorf("got %q, want %q", g, want)
	}
}

// close drops the rest of the queue when the grace period has passed or a signal arrives.
// It ignores signals that arrived before, and a closed channel of signals.
func TestConsoleGivenUp(t *testing.T) {
	closed := make(chan os.Signal)
	close(closed)
	for name, test := range map[string]struct {
		grace   time.Duration
		signals chan os.Signal
		send    bool
		before  bool // it was waited for in vain
	}{
		"time":   {time.Millisecond, nil, false, false},
		"closed": {time.Millisecond, closed, false, false},
		"signal": {time.Hour, make(chan os.Signal), true, false},
		"before": {time.Hour, nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newBlockedConsole()
			c := &console{stderr: g, grace: test.grace}
			c.logf("first")
			c.logf("second")
			<-g.started
			if test.before {
				c.giveUp()
			}
			if test.send {
				go func() { test.signals <- syscall.SIGTERM }()
			}
			c.close(test.signals)
			close(g.open)
			<-c.idle
			if want := "golaunch: first\n"; g.String() != want {
				t.Errorf("got %q, want %q", g, want)
			}
		})
	}
	t.Run("signal before", func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		signals <- syscall.SIGTERM
		g := newBlockedConsole()
		c := &console{stderr: g, grace: soon}
		c.logf("first")
		c.logf("second")
		go func() {
			<-g.started
			close(g.open)
		}()
		c.close(signals)
		if want := "golaunch: first\ngolaunch: second\n"; g.String() != want {
			t.Errorf("got %q, want %q", g, want)
		}
	})
}

// An attempt ends although the console blocks. The console then writes the next attempt's
// output.
func TestDrainOfABlockedConsole(t *testing.T) {
	g := newBlockedConsole()
	c := &console{stdout: g, grace: time.Millisecond}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{cfg: &Config{}, console: c}
	a.begin(nil)
	st := &stream{pipe: r, console: c, shown: g, hidden: a.showing.Done()}
	a.procs = []*process{{streams: []*stream{st}}}
	a.copying.Go(st.copy)
	if _, err := w.WriteString("of the first\n"); err != nil {
		t.Fatal(err)
	}
	<-g.started
	if _, err := w.WriteString("lost\n"); err != nil {
		t.Fatal(err)
	}
	a.drain(c.grace, c.giveUp) // although w is open
	w.Close()
	close(g.open)
	c.write(g, []byte("of the next\n"), nil)
	c.close(nil)
	if want := "of the first\nof the next\n"; g.String() != want {
		t.Errorf("got %q, want %q", g, want)
	}
}
