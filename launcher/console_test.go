package launcher

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
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
	synctest.Test(t, func(t *testing.T) {
		closed, earlier := make(chan os.Signal), make(chan os.Signal, 1)
		close(closed)
		earlier <- syscall.SIGTERM
		for name, test := range map[string]struct {
			signals chan os.Signal
			act     func(c *console, signals chan os.Signal) // while close waits
			took    time.Duration
		}{
			"time":   {nil, nil, time.Minute},
			"closed": {closed, nil, time.Minute},
			"before": {earlier, nil, time.Minute},
			"signal": {make(chan os.Signal), func(_ *console, signals chan os.Signal) { signals <- syscall.SIGTERM }, 0},
			"stuck":  {nil, func(c *console, _ chan os.Signal) { c.giveUp() }, time.Second}, // an attempt waited for it
		} {
			g := newBlockedConsole()
			c := &console{stderr: g, grace: time.Minute}
			c.logf("first")
			c.logf("second")
			<-g.started
			if name == "stuck" {
				test.act(c, nil)
			} else if test.act != nil {
				go test.act(c, test.signals)
			}
			began := time.Now()
			c.close(test.signals)
			if took := time.Since(began); took != test.took {
				t.Errorf("%s: close took %v, want %v", name, took, test.took)
			}
			close(g.open)
			<-c.idle
			if want := "golaunch: first\n"; g.String() != want {
				t.Errorf("%s: got %q, want %q", name, g, want)
			}
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
