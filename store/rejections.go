package store

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// rejectionInterval is the least time between two lines about rejections.
const rejectionInterval = time.Second

// rejections logs the connections that a server rejects: the first at once, and
// those of the following interval in one line at its end, with their number and
// the last of them.
type rejections struct {
	log *slog.Logger

	mu     sync.Mutex
	timer  *time.Timer // runs while an interval does; nil: none does
	count  int         // rejections of the interval that have no line yet
	peer   string      // of the last of them
	err    error
	closed bool
}

// add logs, or counts, that peer was rejected because of err.
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

// tick ends an interval. The next begins if there was anything to log.
func (r *rejections) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	if r.count > 0 && !r.closed {
		r.write()
		r.timer = time.AfterFunc(rejectionInterval, r.tick)
	}
}

// write must be called with mu held.
func (r *rejections) write() {
	r.log.LogAttrs(context.Background(), slog.LevelWarn, "store: connection rejected",
		slog.Int("count", r.count), slog.String("peer", r.peer), slog.Any("err", r.err))
	r.count = 0
}

// close logs what was counted and starts no interval any more.
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
