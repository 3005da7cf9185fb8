package launcher

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/printer"
)

const (
	// drainTime is how long the end of an attempt waits for copies of the workers' output that wait for room on the console.
	drainTime = 5 * time.Second
	// hurriedTime replaces drainTime after a signal. After a signal it is also how long the end of the job waits for a blocked console.
	hurriedTime = time.Second
)

// console is the agent's stdout and stderr, which all workers share. Only the goroutines that copy the workers' output
// wait for the console, for a short time, so that output does not pile up.
type console struct {
	*printer.Printer
	json *jsonLine // what all JSON lines of the agent have in common; nil: lines are text

	mu       sync.Mutex
	lost     error    // why a log file lacks what a worker wrote; or nil
	observer observer // is told each line of the agent itself; or nil
}

func newConsole(stdout, stderr io.Writer) *console {
	c := &console{}
	c.Printer = printer.New(stdout, stderr, c.line)
	return c
}

// logf queues a line of the agent itself.
func (c *console) logf(format string, args ...any) {
	c.Stderr.Put(c.line(format, args...))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.observer != nil {
		c.observer.Event(fmt.Sprintf(format, args...))
	}
}

// watch sets who is told the agent's own lines from now on.
func (c *console) watch(w observer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observer = w
}

// lose records and says why a log file lacks what a worker wrote.
func (c *console) lose(err error) {
	c.mu.Lock()
	c.lost = cmp.Or(c.lost, err)
	c.mu.Unlock()
	c.logf("log file: %v", err)
}

// line returns a line of the agent itself.
func (c *console) line(format string, args ...any) []byte {
	text := fmt.Sprintf(format, args...)
	if c.json != nil {
		return c.json.append(nil, text)
	}
	return []byte("golaunch: " + text + "\n")
}

// logStack queues the frames of a crash, as describeStack returns them.
func (c *console) logStack(frames []string) {
	if c.json != nil {
		c.Stderr.Put(c.json.append(nil, strings.Join(frames, "\n")))
		return
	}
	c.Stderr.Put([]byte("  | " + strings.Join(frames, "\n  | ") + "\n"))
}

// logReport queues the report of a failure.
func (c *console) logReport(e *FailureError) {
	if c.json != nil {
		line := *c.json
		line.Failure = newJSONFailure(e)
		c.Stderr.Put(line.append(nil, e.Error()))
		return
	}
	c.Stderr.Put([]byte(e.Report()))
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
	text := strings.TrimSuffix(string(line), "\n")
	if rest, isMessage := strings.CutPrefix(text, `msg="`); isMessage { // no message has a quote
		text = strings.Replace(rest, `"`, "", 1)
	}
	w.console.logf("%s", text)
	return len(line), nil
}
