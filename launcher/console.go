package launcher

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// consoleGrace is how long the console is waited for once what is written there has
// ended: the workers of an attempt, or the job. Somebody may read it page by page.
const consoleGrace = 10 * time.Minute

// console is the agent's own stdout and stderr, which all workers share. A write
// may last for ever: the terminal is held, or nobody turns a pager's page. So a
// goroutine of its own writes, in the order of the queue, and only those wait for it
// whose output must not pile up.
type console struct {
	stdout, stderr io.Writer
	grace          time.Duration
	redrawn        bool // the terminal shows a line that will be redrawn; of the goroutine that writes

	mu    sync.Mutex
	queue []output      // the first is being written
	idle  chan struct{} // closed when the goroutine that writes has ended; nil before the first
	stuck bool          // it was waited for in vain
}

// eraseLine has a terminal erase the line on which its cursor stands at the beginning.
const eraseLine = "\x1b[K"

// isTerminal tells whether w can redraw a line in place.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// output is whole lines on their way.
type output struct {
	to      io.Writer
	lines   []byte
	written chan struct{} // closed when they are
}

// logf has a line of the agent itself written, and does not wait for that.
func (c *console) logf(format string, args ...any) {
	c.put(c.stderr, fmt.Appendf(nil, "golaunch: "+format+"\n", args...))
}

// write passes whole lines on and reports whether that was done before giveUp was
// closed. If not, it may still happen.
func (c *console) write(to io.Writer, lines []byte, giveUp <-chan struct{}) bool {
	select {
	case <-c.put(to, lines):
		return true
	case <-giveUp:
		return false
	}
}

// put queues whole lines, which must not change before the result is closed.
func (c *console) put(to io.Writer, lines []byte) (written <-chan struct{}) {
	o := output{to, lines, make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, o)
	if len(c.queue) == 1 {
		c.idle = make(chan struct{})
		go c.writeQueue(o)
	}
	return o.written
}

// writeQueue writes what is queued, from its first on.
func (c *console) writeQueue(o output) {
	for more := true; more; o, more = c.next() {
		// An error has no better place to go than the console itself, and the
		// workers must not be blocked by it.
		if c.redrawn && isTerminal(o.to) {
			_, _ = io.WriteString(o.to, eraseLine)
		}
		_, _ = o.to.Write(o.lines)
		if isTerminal(o.to) {
			c.redrawn = bytes.HasSuffix(o.lines, []byte{'\r'})
		}
		close(o.written)
	}
}

// next takes the first of the queue out and returns the one behind it.
func (c *console) next() (o output, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = c.queue[1:]
	if len(c.queue) == 0 {
		close(c.idle)
		return output{}, false
	}
	return c.queue[0], true
}

// giveUp notes that the console was waited for in vain: close does not do so again for
// long.
func (c *console) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = true
}

// close waits until all is written, for as long as the console has and no signal
// comes, and gives up the rest then. A write that blocks is left behind.
func (c *console) close(signals <-chan os.Signal) {
	c.mu.Lock()
	idle, grace := c.idle, c.grace
	if c.stuck {
		grace = min(grace, time.Second)
	}
	c.mu.Unlock()
	if idle == nil {
		return
	}
	for len(signals) > 0 { // those that came before were meant for the job
		<-signals
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for {
		select {
		case <-idle:
			return
		case _, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
		case <-timer.C:
		}
		break
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = c.queue[:min(len(c.queue), 1)]
}
