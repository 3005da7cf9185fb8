package launcher

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/wire"
)

const (
	// maxMirrored is the number of bytes that may wait until the host of the rendezvous takes
	// them.
	maxMirrored = 4 << 20
	// mirrorGrace is how long the end of an attempt waits until the host has shown its lines.
	mirrorGrace = 2 * time.Second
)

// mirroredLines is what a node's console shows at once.
type mirroredLines struct {
	Stderr bool
	Lines  []byte
	Last   bool // no message follows
}

// mirror sends what the console of this node shows in an attempt to the host of the
// rendezvous. It never makes a worker wait: lines for which the host is too slow are
// dropped.
type mirror struct {
	queue *wire.Outbox
	line  func(format string, args ...any) []byte // makes a line of the agent's own
	done  chan struct{}                           // closed when run has returned

	mu      sync.Mutex
	conn    net.Conn // nil before it is open
	dropped int      // number of lines since the last one that was sent
}

// newMirror returns a mirror for a connection that open opens. The caller must call run, in
// a goroutine.
func newMirror(line func(format string, args ...any) []byte) *mirror {
	return &mirror{queue: wire.NewOutbox(maxMirrored), line: line, done: make(chan struct{})}
}

// run sends the lines until close is called or the connection ends.
func (m *mirror) run(open func() (net.Conn, error)) {
	defer close(m.done)
	conn, err := open()
	if err != nil {
		return // the host is lost, which ends the attempt
	}
	defer conn.Close()
	m.mu.Lock()
	m.conn = conn
	m.mu.Unlock()
	if m.queue.Run(conn) != nil {
		return
	}
	var last mirroredLines
	m.mu.Lock()
	if m.dropped > 0 {
		last = m.report()
	}
	m.mu.Unlock()
	last.Last = true
	_, _ = conn.Write(wire.Encode(last)) // if it fails, so does the next read
	conn.Close()                         // this direction
	_ = conn.SetReadDeadline(time.Now().Add(mirrorGrace))
	_, _ = io.Copy(io.Discard, conn) // the host closes the other when it has shown the lines
}

// send queues lines. It does not wait.
func (m *mirror) send(isStderr bool, lines []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dropped > 0 && m.queue.Put(wire.Encode(m.report())) {
		m.dropped = 0
	}
	if m.dropped > 0 || !m.queue.Put(wire.Encode(mirroredLines{Stderr: isStderr, Lines: lines})) {
		m.dropped += bytes.Count(lines, []byte{'\n'})
	}
}

// report returns a message that tells the host's user how many lines were dropped. The
// caller must hold mu.
func (m *mirror) report() mirroredLines {
	return mirroredLines{Stderr: true, Lines: m.line("%d lines are not shown here: they came too fast", m.dropped)}
}

// close waits a short time until the host has shown all lines.
func (m *mirror) close() {
	m.queue.Close()
	timer := time.NewTimer(mirrorGrace)
	defer timer.Stop()
	select {
	case <-m.done:
	case <-timer.C:
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.conn != nil {
			m.conn.Close() // ends a write
		}
	}
}

// showMirrored shows the lines of another node, until the stream ends or done is closed. If
// the stream ends early, it says that lines may be missing.
func (c *console) showMirrored(stream io.Reader, done <-chan struct{}) {
	in := bufio.NewReader(stream)
	for {
		var m mirroredLines
		if wire.Decode(in, 2*maxMirrored, &m) != nil {
			select {
			case <-done:
			default:
				c.logf("lines of another node may be missing here: its agent ended, or they came too fast")
			}
			return
		}
		to := c.Stdout
		if m.Stderr {
			to = c.Stderr
		}
		if c.write(to, m.Lines, done); m.Last {
			return
		}
	}
}

// setMirror makes the console's lines go to m too, or to no mirror. It returns the mirror
// before.
func (c *console) setMirror(m *mirror) (before *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.mirror = c.mirror, m
	return before
}

// mirrorConsole makes the host of the rendezvous show what this node shows in the attempt
// that begins, if the user wants that and the host is another node.
func (a *agent) mirrorConsole() {
	if !a.cfg.showsAllOutput() || a.rendezvous.IsHost() {
		return
	}
	a.endMirror() // of an attempt that was not completed
	m := newMirror(a.console.line)
	a.mirrors.Go(func() { m.run(a.rendezvous.OpenOutput) })
	a.console.setMirror(m)
}

// endMirror waits a short time until the host of the rendezvous has shown the lines of the
// attempt.
func (a *agent) endMirror() {
	if m := a.console.setMirror(nil); m != nil {
		m.close()
	}
}
