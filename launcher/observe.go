package launcher

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/internal/wire"
)

// observation is what a node tells the node with the page. One field is set.
type observation struct {
	Reports *reportsMessage `json:",omitempty"`
	Worker  *page.Worker    `json:",omitempty"`
	Line    *lineMessage    `json:",omitempty"`
	Event   string          `json:",omitempty"`
}

type reportsMessage struct {
	Rank     int
	Datagram []byte
}

type lineMessage struct {
	Rank  int
	Text  string
	IsErr bool
}

// remoteRun tells the node with the page what happens on this one. What its connection does not take in time is lost, and
// so are lines beyond maxLines, because the connection is also that of the rendezvous.
type remoteRun struct {
	conn    net.Conn
	box     *wire.Outbox
	running sync.WaitGroup

	mu     sync.Mutex
	second int64 // the second, since 1970, in which lines were sent last
	lines  int   // the number of lines in that second
}

const (
	// maxObservations is the number of bytes that may wait for the connection with the page.
	maxObservations = 1 << 20
	// maxLines is the number of lines of all workers that are sent in a second, and maxText that of the bytes of a line.
	maxLines = 500
	maxText  = 1 << 10
)

func newRemoteRun(c net.Conn) *remoteRun {
	r := &remoteRun{conn: c, box: wire.NewOutbox(maxObservations)}
	r.running.Go(func() { _ = r.box.Run(c) }) // fails if the host is lost, which the rendezvous notices
	return r
}

func (r *remoteRun) send(o *observation) { r.box.Put(wire.Encode(o)) }

func (r *remoteRun) Report(rank int, datagram []byte) error {
	r.send(&observation{Reports: &reportsMessage{rank, datagram}})
	return nil
}

func (r *remoteRun) Worker(w page.Worker) { r.send(&observation{Worker: &w}) }

func (r *remoteRun) Line(rank int, text string, isErr bool) {
	r.mu.Lock()
	if now := time.Now().Unix(); now != r.second {
		r.second, r.lines = now, 0
	}
	r.lines++
	isLost := r.lines > maxLines
	r.mu.Unlock()
	if !isLost {
		r.send(&observation{Line: &lineMessage{rank, text[:min(len(text), maxText)], isErr}})
	}
}

func (r *remoteRun) Event(text string) { r.send(&observation{Event: text}) }

// close writes what waits, for at most a short time.
func (r *remoteRun) close() {
	if r == nil {
		return
	}
	r.box.Close()
	_ = r.conn.SetWriteDeadline(time.Now().Add(drainGrace)) // the connection may be closed already
	r.running.Wait()
	r.conn.Close()
}

// observe passes on what an agent of another node tells.
func observe(stream io.Reader, to observer) {
	in := bufio.NewReader(stream)
	for {
		var o observation
		if wire.Decode(in, maxObservations, &o) != nil {
			return
		}
		switch {
		case o.Reports != nil:
			_ = to.Report(o.Reports.Rank, o.Reports.Datagram)
		case o.Worker != nil:
			to.Worker(*o.Worker)
		case o.Line != nil:
			to.Line(o.Line.Rank, o.Line.Text, o.Line.IsErr)
		case o.Event != "":
			to.Event(o.Event)
		}
	}
}
