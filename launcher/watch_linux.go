package launcher

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watcher reports the exits of workers in the order in which the kernel saw them. The ready list of
// an epoll instance is a queue, and the kernel adds each pidfd at the moment its process ends. So
// the order is right even if one exit causes another within less than a scheduling delay.
type watcher struct {
	exits    chan<- exit
	epoll    *os.File // nil if there is no epoll instance; add then starts a goroutine for each worker
	watching sync.WaitGroup
	closed   chan struct{}

	mu       sync.Mutex
	children map[int32]*child // by pidfd
}

// newWatcher returns a watcher that sends to exits until close is called.
func newWatcher(exits chan<- exit) *watcher {
	w := &watcher{exits: exits, closed: make(chan struct{}), children: map[int32]*child{}}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return w
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return w
	}
	w.epoll = os.NewFile(uintptr(fd), "workers")
	w.watching.Go(w.watch)
	return w
}

// add begins to watch c, which has just been started. On kernels without pidfds (before
// 5.4) it starts a goroutine for each worker.
func (w *watcher) add(c *child) {
	if !w.register(c) {
		go watchOne(c, w.exits, w.closed)
	}
}

// register adds the pidfd of c to the epoll instance, and reports whether that succeeded.
func (w *watcher) register(c *child) bool {
	if w.epoll == nil || c.pidfd < 0 {
		return false
	}
	conn, err := w.epoll.SyscallConn()
	if err != nil {
		return false
	}
	fd := int32(c.pidfd)
	w.mu.Lock()
	w.children[fd] = c
	w.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: fd}
	var ctlErr error
	err = conn.Control(func(epoll uintptr) {
		ctlErr = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, c.pidfd, &ev)
	})
	return err == nil && ctlErr == nil
}

// watch reports exits until the watcher is closed.
func (w *watcher) watch() {
	conn, err := w.epoll.SyscallConn()
	if err != nil {
		return // the watcher is closed
	}
	events := make([]unix.EpollEvent, 64)
	for {
		var n int
		// The epoll instance is itself a descriptor. The runtime's poller wakes this
		// goroutine when it becomes readable.
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return // the watcher is closed
		}
		at := time.Now()
		for _, ev := range events[:n] {
			w.mu.Lock()
			c := w.children[ev.Fd]
			delete(w.children, ev.Fd)
			w.mu.Unlock()
			unix.Close(int(ev.Fd))
			select {
			case w.exits <- exit{c: c, at: at}:
			case <-w.closed:
				return
			}
		}
	}
}

// close stops watching. It does not wait for workers that still run.
func (w *watcher) close() {
	close(w.closed)
	if w.epoll != nil {
		w.epoll.Close()
		w.watching.Wait()
	}
	for fd := range w.children {
		unix.Close(int(fd))
	}
}
