package launcher

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// consoleGrace is how long the agent waits for blocked writes to the console after the
// workers of an attempt, or the job, have ended. A user may read the output page by page.
const consoleGrace = 10 * time.Minute

// console is the agent's stdout and stderr, which all workers share. A write may block for
// ever, if the user holds the terminal or leaves a pager. So a goroutine of the console
// writes the queue, in its order. Only the goroutines that copy the workers' output wait
// for a write, so that output does not pile up.
type console struct {
	stdout, stderr io.Writer
	json           *jsonLine // what all JSON lines of the agent have in common; nil: lines are text
	where          string    // " on HOST" if the host of the rendezvous shows the lines too, else ""
	grace          time.Duration
	redrawn        bool // the terminal's last line ended with "\r"; used by the writing goroutine only

	mu     sync.Mutex
	mirror *mirror       // gets all lines; or nil
	queue  []output      // the first element is being written
	idle   chan struct{} // closed when the writing goroutine has ended; nil before the first write
	stuck  bool          // giveUp has been called
}

// eraseLine makes a terminal erase the line on which its cursor is.
const eraseLine = "\x1b[K"

// isTerminal reports whether w is a terminal, which can redraw a line in place.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// output is a write of whole lines in the queue.
type output struct {
	to      io.Writer
	lines   []byte
	written chan struct{} // closed after the write
}

// logf queues a line of the agent itself. It does not wait for the write.
func (c *console) logf(format string, args ...any) {
	c.put(c.stderr, c.line(format, args...))
}

// line returns a line of the agent itself.
func (c *console) line(format string, args ...any) []byte {
	text := fmt.Sprintf(format, args...)
	if c.json != nil {
		return c.json.append(nil, text)
	}
	return []byte("golaunch" + c.where + ": " + text + "\n")
}

// logStack queues the frames of a crash, as describeStack returns them.
func (c *console) logStack(frames []string) {
	if c.json != nil {
		c.put(c.stderr, c.json.append(nil, strings.Join(frames, "\n")))
		return
	}
	c.put(c.stderr, []byte("  | "+strings.Join(frames, "\n  | ")+"\n"))
}

// logReport queues the report of a failure.
func (c *console) logReport(e *FailureError) {
	if c.json != nil {
		line := *c.json
		line.Failure = newJSONFailure(e)
		c.put(c.stderr, line.append(nil, e.Error()))
		return
	}
	c.put(c.stderr, []byte(e.Report()))
}

// logger returns a logger whose records are lines of the agent itself.
func (c *console) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(lineWriter{c}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// lineWriter queues each line as one of the agent's own.
type lineWriter struct{ console *console }

func (w lineWriter) Write(line []byte) (int, error) {
	w.console.logf("%s", bytes.TrimSuffix(line, []byte("\n")))
	return len(line), nil
}

// write queues whole lines and waits until they are written or giveUp is closed. It
// reports whether they are written. If not, they may still be written later.
func (c *console) write(to io.Writer, lines []byte, giveUp <-chan struct{}) bool {
	select {
	case <-c.put(to, lines):
		return true
	case <-giveUp:
		return false
	}
}

// put queues whole lines. The caller must not change them before written is closed.
func (c *console) put(to io.Writer, lines []byte) (written <-chan struct{}) {
	o := output{to, lines, make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mirror != nil {
		c.mirror.send(to == c.stderr, lines)
	}
	c.queue = append(c.queue, o)
	if len(c.queue) == 1 {
		c.idle = make(chan struct{})
		go c.writeQueue(o)
	}
	return o.written
}

// writeQueue writes the queue, which begins with o, until it is empty.
func (c *console) writeQueue(o output) {
	for more := true; more; o, more = c.next() {
		// A write error is ignored: it could only be reported to the same console, and it
		// must not block the workers.
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

// next removes the first element of the queue and returns the following one.
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

// giveUp records that a wait for the console was in vain, so that close waits only
// briefly.
func (c *console) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = true
}

// close waits until the queue is written. It drops the rest of the queue when the grace
// period has passed or a signal arrives. A blocked write is left to its goroutine.
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
	for len(signals) > 0 { // these arrived earlier and were meant for the job
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
