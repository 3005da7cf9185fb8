package launcher

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watcher reports the ends of workers in the order in which the kernel saw them: the
// ready list of an epoll instance is a queue, and the kernel puts each pidfd into it
// at the moment its process ends. That order tells a cause from the failures that
// follow it by less than a scheduling delay.
type watcher struct {
	exits    chan<- exit
	epoll    *os.File // nil if the kernel has none for us: every add falls back
	watching sync.WaitGroup
	closed   chan struct{}

	mu       sync.Mutex
	children map[int32]*child // by pidfd
}

// newWatcher returns a watcher that sends to exits until it is closed.
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

// add watches c, which has just been started. Processes of kernels without
// pidfds (before 5.4) each get a goroutine.
func (w *watcher) add(c *child) {
	if !w.register(c) {
		go watchOne(c, w.exits, w.closed)
	}
}

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

func (w *watcher) watch() {
	conn, err := w.epoll.SyscallConn()
	if err != nil {
		return // closed already
	}
	events := make([]unix.EpollEvent, 64)
	for {
		var n int
		// The runtime's poller wakes this goroutine when the epoll instance,
		// itself a descriptor, becomes readable.
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return // closed
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

// close ends the watch. Workers that have not ended are not waited for.
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
