package store

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// rejectionInterval is the shortest time between two log lines about rejections.
const rejectionInterval = time.Second

// rejections logs the connections that a server rejects. It logs the first one at once.
// The rejections of the following interval get one line at its end, with their number and
// the last peer and error.
type rejections struct {
	log *slog.Logger

	mu     sync.Mutex
	timer  *time.Timer // the timer of the current interval; nil if there is none
	count  int         // number of rejections that are not logged yet
	peer   string      // the peer of the last rejection
	err    error       // the error of the last rejection
	closed bool
}

// add logs that peer was rejected because of err, or counts it for the next line.
func (r *rejections) add(peer string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.peer, r.err = peer, err
	if r.timer == nil {
		r.write()
		if !r.closed {
			r.timer = time.AfterFunc(rejectionInterval, r.tick)
		}
	}
}

// tick ends an interval and logs its rejections. If there were any, a new interval begins.
func (r *rejections) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	if r.count > 0 && !r.closed {
		r.write()
		r.timer = time.AfterFunc(rejectionInterval, r.tick)
	}
}

// write logs a line. The caller must hold mu.
func (r *rejections) write() {
	r.log.LogAttrs(context.Background(), slog.LevelWarn, "store: connection rejected",
		slog.Int("count", r.count), slog.String("peer", r.peer), slog.Any("err", r.err))
	r.count = 0
}

// close logs the rejections that are not logged yet. No interval begins after close.
func (r *rejections) close() {
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
