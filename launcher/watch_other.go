//go:build !linux

package launcher

// watcher reports the exits of workers.
type watcher struct {
	exits  chan<- exit
	closed chan struct{}
}

// newWatcher returns a watcher that sends to exits until close is called.
func newWatcher(exits chan<- exit) *watcher { return &watcher{exits, make(chan struct{})} }

// add begins to watch c, which has just been started.
func (w *watcher) add(c *child) { go watchOne(c, w.exits, w.closed) }

// close stops reporting. The goroutine of a worker ends when the worker does.
func (w *watcher) close() { close(w.closed) }
