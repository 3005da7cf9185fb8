package launcher

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watcher reports the ends of an attempt's workers in the order in which the
// kernel saw them: the ready list of an epoll instance is a queue, and each
// pidfd is put into it at the moment its process ends. That order is what tells
// a cause from the echoes that follow it by less than a scheduling delay.
type watcher struct {
	exits    chan<- exit
	epoll    *os.File // nil if the kernel has none for us: every add falls back
	watching sync.WaitGroup

	mu    sync.Mutex
	procs map[int32]*process // by pidfd
}

// newWatcher returns a watcher that sends to exits, which must have room for all workers.
func newWatcher(exits chan<- exit) *watcher {
	w := &watcher{exits: exits, procs: map[int32]*process{}}
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

// add watches p, which has just been started. Processes of kernels without
// pidfds (before 5.4) each get a goroutine.
func (w *watcher) add(p *process) {
	if !w.register(p) {
		go watchOne(p, w.exits)
	}
}

func (w *watcher) register(p *process) bool {
	if w.epoll == nil || p.pidfd < 0 {
		return false
	}
	conn, err := w.epoll.SyscallConn()
	if err != nil {
		return false
	}
	fd := int32(p.pidfd)
	w.mu.Lock()
	w.procs[fd] = p
	w.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: fd}
	var ctlErr error
	err = conn.Control(func(epoll uintptr) {
		ctlErr = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, p.pidfd, &ev)
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
			p := w.procs[ev.Fd]
			w.mu.Unlock()
			w.exits <- exit{p: p, at: at}
		}
	}
}

// close ends the watch. Workers that have not ended are not waited for.
func (w *watcher) close() {
	if w.epoll != nil {
		w.epoll.Close()
		w.watching.Wait()
	}
	for fd := range w.procs {
		unix.Close(int(fd))
	}
}
