//go:build !linux

package launcher

// watcher reports the ends of workers.
type watcher struct {
	exits  chan<- exit
	closed chan struct{}
}

// newWatcher returns a watcher that sends to exits until it is closed.
func newWatcher(exits chan<- exit) *watcher { return &watcher{exits, make(chan struct{})} }

// add watches c, which has just been started.
func (w *watcher) add(c *child) { go watchOne(c, w.exits, w.closed) }

// close ends the watch: a goroutine ends with its process.
func (w *watcher) close() { close(w.closed) }
