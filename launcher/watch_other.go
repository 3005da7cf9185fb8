//go:build !linux

package launcher

// watcher reports the ends of an attempt's workers.
type watcher struct{ exits chan<- exit }

// newWatcher returns a watcher that sends to exits, which must have room for all workers.
func newWatcher(exits chan<- exit) *watcher { return &watcher{exits} }

// add watches p, which has just been started.
func (w *watcher) add(p *process) { go watchOne(p, w.exits) }

// close has nothing to do: each watch ends with its process.
func (w *watcher) close() {}
