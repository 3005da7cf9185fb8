package printer

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/terminal"
)

const (
	// Patience is how long an output may accept no line before it counts as blocked.
	Patience = 2 * time.Second
	// maxQueued is the number of bytes that may be queued for an output. maxLeft is the limit for a Write that no
	// longer waits; it equals what the pipes of 64 exited processes hold. maxOwn is the limit for Put.
	maxQueued = 1 << 20
	maxLeft   = 4 << 20
	maxOwn    = 5 << 20
)

// Printer is a process's stdout and stderr.
type Printer struct {
	Stdout, Stderr *Output
	line           func(format string, args ...any) []byte // makes a line of the process itself

	mu sync.Mutex // guards the queues, and the fields of the outputs that say so
}

// New returns a printer. line makes a line of the process itself, with its end.
func New(stdout, stderr io.Writer, line func(format string, args ...any) []byte) *Printer {
	p := &Printer{line: line}
	q := &queue{}
	p.Stdout = &Output{printer: p, name: "stdout", to: stdout, queue: q}
	if areTwoFiles(stdout, stderr) {
		q = &queue{}
	}
	p.Stderr = &Output{printer: p, name: "stderr", to: stderr, queue: q}
	return p
}

// areTwoFiles reports whether a and b are different files.
func areTwoFiles(a, b io.Writer) bool {
	f, isFile := a.(*os.File)
	g, isFileToo := b.(*os.File)
	if !isFile || !isFileToo {
		return false
	}
	infoF, errF := f.Stat()
	infoG, errG := g.Stat()
	return errF == nil && errG == nil && !os.SameFile(infoF, infoG)
}

// Output is one of a printer's outputs.
type Output struct {
	printer *Printer
	name    string
	to      io.Writer
	queue   *queue

	dropped int   // number of dropped lines that tellDropped has not told yet; guarded by printer.mu
	err     error // the first error of a write; guarded by printer.mu
}

// queue holds what waits to be written. The printer's mu guards it.
type queue struct {
	entries []entry       // the first one is being written
	size    int           // total size of the entries in bytes
	moved   chan struct{} // closed at the end of the write in progress
	movedAt time.Time     // when the write in progress began
	redrawn bool          // the terminal's last line ended with "\r"; used by the writing goroutine only
}

// entry is a write of whole lines.
type entry struct {
	to    *Output
	lines []byte
}

// Put queues whole lines without waiting. The caller must not change them afterwards. Put may queue more bytes than
// Write.
func (o *Output) Put(lines []byte) {
	o.printer.mu.Lock()
	defer o.printer.mu.Unlock()
	o.put(lines, maxOwn)
}

// Write queues whole lines. If there is no room for the lines, Write waits for room. If the output is blocked, Write drops
// the lines. When giveUp is closed, Write no longer waits, and an output that is not blocked has more room. The caller must
// not change the lines afterwards.
func (o *Output) Write(lines []byte, giveUp <-chan struct{}) {
	o.printer.mu.Lock()
	defer o.printer.mu.Unlock()
	q, most := o.queue, maxQueued
	for !q.hasRoom(len(lines), most) {
		if !o.printer.wait(q, time.Until(q.movedAt.Add(Patience)), giveUp) {
			if time.Since(q.movedAt) < Patience {
				most = maxLeft
			}
			break
		}
	}
	o.put(lines, most)
}

// hasRoom reports whether n more bytes fit: the queue is empty, or has at most the given number of bytes with them.
func (q *queue) hasRoom(n, most int) bool { return len(q.entries) == 0 || q.size+n <= most }

// wait waits for the write in progress, and reports whether it ended within the given time and before giveUp was
// closed.
func (p *Printer) wait(q *queue, most time.Duration, giveUp <-chan struct{}) bool {
	moved := q.moved
	p.mu.Unlock()
	defer p.mu.Lock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-moved:
		return true
	case <-timer.C:
	case <-giveUp:
	}
	return false
}

// put queues lines if there is room for them.
func (o *Output) put(lines []byte, most int) {
	if !o.queue.hasRoom(len(lines), most) {
		o.drop(lines)
		return
	}
	o.tellDropped()
	o.add(lines)
}

func (o *Output) drop(lines []byte) { o.dropped += bytes.Count(lines, []byte{'\n'}) }

// tellDropped queues a line that says how many lines were dropped.
func (o *Output) tellDropped() {
	if n := o.dropped; n > 0 {
		o.dropped = 0
		o.printer.Stderr.add(o.printer.line("%d lines are not shown: nobody read %s", n, o.name))
	}
}

func (o *Output) add(lines []byte) {
	q := o.queue
	q.entries = append(q.entries, entry{o, lines})
	q.size += len(lines)
	if len(q.entries) == 1 {
		q.moved, q.movedAt = make(chan struct{}), time.Now()
		go o.printer.write(q)
	}
}

// write writes a queue until it is empty.
func (p *Printer) write(q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(q.entries) > 0 {
		e := q.entries[0]
		p.mu.Unlock()
		err := q.writeOne(e)
		p.mu.Lock()
		if err != nil && !readerHasEnded(err, e.to.Columns() > 0) {
			e.to.err = cmp.Or(e.to.err, err)
		}
		q.entries = q.entries[1:]
		q.size -= len(e.lines)
		close(q.moved)
		q.moved, q.movedAt = make(chan struct{}), time.Now()
	}
}

// EraseLine makes a terminal erase the line on which its cursor is.
const EraseLine = "\x1b[K"

func (q *queue) writeOne(e entry) error {
	isTerminal := e.to.Columns() > 0
	if q.redrawn && isTerminal {
		if _, err := io.WriteString(e.to.to, EraseLine); err != nil {
			return err
		}
	}
	_, err := e.to.to.Write(e.lines)
	if isTerminal {
		q.redrawn = bytes.HasSuffix(e.lines, []byte{'\r'})
	}
	return err
}

// Columns returns the width of the terminal that the output is, or 0 if a line cannot be redrawn in place there.
func (o *Output) Columns() int {
	f, ok := o.to.(*os.File)
	if !ok {
		return 0
	}
	return terminal.Columns(f)
}

// readerHasEnded reports whether a write failed because the reader has exited, such as head, which does not count as
// lost output.
func readerHasEnded(err error, isTerminal bool) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrClosedPipe) ||
		isTerminal && errors.Is(err, syscall.EIO)
}

// Close waits until all lines are written. It abandons an output that accepts no line for the time grace, and both
// outputs when a signal arrives. A blocked write stays in its goroutine. If a write to stdout failed, Close reports
// this on stderr. It returns the first write error. A reader that has exited is not an error.
func (p *Printer) Close(grace time.Duration, signals <-chan os.Signal) error {
	for len(signals) > 0 { // signals that came before Close were meant for something else
		<-signals
	}
	giveUp, done := make(chan struct{}), make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case _, ok := <-signals:
				if ok {
					close(giveUp)
					return
				}
				signals = nil
			case <-done:
				return
			}
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	p.flush(p.Stdout.queue, start, grace, giveUp)
	p.flush(p.Stderr.queue, start, grace, giveUp)
	p.Stdout.tellDropped()
	p.Stderr.tellDropped()
	if p.Stdout.err != nil {
		p.Stderr.add(p.line("%v", p.Stdout.err))
	}
	p.flush(p.Stderr.queue, start, grace, giveUp)
	return cmp.Or(p.Stdout.err, p.Stderr.err)
}

// flush waits until a queue is written. It drops the rest of a queue that does not move for the time grace, or when giveUp
// is closed.
func (p *Printer) flush(q *queue, start time.Time, grace time.Duration, giveUp <-chan struct{}) {
	for len(q.entries) > 0 {
		since := start
		if q.movedAt.After(start) {
			since = q.movedAt
		}
		if !p.wait(q, time.Until(since.Add(grace)), giveUp) {
			for _, e := range q.entries[min(1, len(q.entries)):] {
				e.to.drop(e.lines)
				q.size -= len(e.lines)
			}
			q.entries = q.entries[:min(1, len(q.entries))]
			return
		}
	}
}
