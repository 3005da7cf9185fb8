package wire

import (
	"log/slog"
	"sync"
	"time"
)

// The interval between two log lines about rejections doubles from the first to the last, until there is one
// without rejections.
const (
	firstInterval = time.Second
	lastInterval  = time.Minute
)

// Rejections logs the connections that a server rejects. It logs the first one at once.
// The rejections of the following interval get one line at its end, with their number and
// the last peer and error.
type Rejections struct {
	log  *slog.Logger
	text string

	mu       sync.Mutex
	timer    *time.Timer   // the timer of the current interval; nil if there is none
	interval time.Duration // the length of the current interval
	count    int           // number of rejections that are not logged yet
	peer     string        // the peer of the last rejection
	err      error         // the error of the last rejection
	closed   bool
}

// NewRejections returns Rejections that writes lines with a text to a logger.
func NewRejections(log *slog.Logger, text string) *Rejections {
	return &Rejections{log: log, text: text}
}

// Add logs that peer was rejected because of err, or counts it for the next line.
func (r *Rejections) Add(peer string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.peer, r.err = peer, err
	if r.timer == nil {
		r.write()
		if !r.closed {
			r.interval = firstInterval
			r.timer = time.AfterFunc(r.interval, r.tick)
		}
	}
}

// tick ends an interval and logs its rejections. If there were any, a new interval begins.
func (r *Rejections) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	if r.count > 0 && !r.closed {
		r.write()
		r.interval = min(2*r.interval, lastInterval)
		r.timer = time.AfterFunc(r.interval, r.tick)
	}
}

// write logs a line. The caller must hold mu.
func (r *Rejections) write() {
	r.log.Warn(r.text, "count", r.count, "peer", r.peer, "err", r.err)
	r.count = 0
}

// Close logs the rejections that are not logged yet. No interval begins after Close.
func (r *Rejections) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if r.count > 0 {
		r.write()
	}
}
