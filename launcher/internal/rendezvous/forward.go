package rendezvous

import (
	"errors"
	"io"
	"net"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/goddp/goddp/internal/wire"
)

// service names the service of the host of the rendezvous that a worker's connection is for. The connection is a
// stream, and the first byte of the stream is the service.
type service byte

const (
	storeService       service = 's'
	coordinatorService service = 'c'
	watchService       service = 'w' // not of a worker, but of its agent: see HostOptions.Watch
)

// forwarder lets the workers of a node reach the services of the current round through their agent, at
// addresses on the loopback interface. The workers and the services know each other by the job's secret;
// the forwarder passes bytes on.
type forwarder struct {
	store, coordinator net.Listener
	open               func(service) (net.Conn, error)
	done               chan struct{} // closed by close
	wg                 sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil when the forwarder is closed
}

// newForwarder returns a forwarder that connects with the services by open.
func newForwarder(open func(service) (net.Conn, error)) (*forwarder, error) {
	f := &forwarder{open: open, done: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	var err error
	if f.store, err = net.Listen("tcp", net.JoinHostPort(wire.Loopback(), "0")); err != nil {
		return nil, err
	}
	if f.coordinator, err = net.Listen("tcp", net.JoinHostPort(wire.Loopback(), "0")); err != nil {
		return nil, errors.Join(err, f.store.Close())
	}
	f.wg.Go(func() { f.accept(f.store, storeService) })
	f.wg.Go(func() { f.accept(f.coordinator, coordinatorService) })
	return f, nil
}

func (f *forwarder) accept(ln net.Listener, to service) {
	wire.Accept(ln, f.done, func(c net.Conn) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.conns == nil {
			c.Close()
			return
		}
		f.conns[c] = struct{}{}
		f.wg.Go(func() { f.forward(c, to) })
	})
}

func (f *forwarder) forward(c net.Conn, to service) {
	defer func() {
		c.Close()
		f.mu.Lock()
		delete(f.conns, c)
		f.mu.Unlock()
	}()
	s, err := f.open(to)
	if err != nil {
		return // the worker finds that its connection ended
	}
	defer s.Close()
	splice(c, s)
}

// close ends all connections.
func (f *forwarder) close() error {
	close(f.done)
	err := errors.Join(f.store.Close(), f.coordinator.Close())
	f.mu.Lock()
	for c := range f.conns {
		c.Close()
	}
	f.conns = nil
	f.mu.Unlock()
	f.wg.Wait()
	return err
}

// forwardAll connects the streams of an agent's workers with the services of the current round, until the
// connection ends. streams counts the goroutines that it starts.
func (h *Host) forwardAll(mux *yamux.Session, streams *sync.WaitGroup) {
	for {
		stream, err := mux.Accept()
		if err != nil {
			return
		}
		streams.Go(func() {
			defer stream.Close()
			var which [1]byte
			if _, err := io.ReadFull(stream, which[:]); err != nil {
				return
			}
			if service(which[0]) == watchService {
				if h.opts.Watch != nil {
					h.opts.Watch(stream)
				}
				return
			}
			c, err := h.open(service(which[0]))
			if err != nil {
				return
			}
			defer c.Close()
			splice(stream, c)
		})
	}
}

// open connects with a service of the current round.
func (h *Host) open(to service) (net.Conn, error) {
	h.mu.Lock()
	s := h.services
	h.mu.Unlock()
	switch {
	case s == nil:
		return nil, net.ErrClosed
	case to == coordinatorService:
		return net.Dial("tcp", s.coordinator.Addr().String())
	}
	return net.Dial("tcp", s.store.Addr())
}

// splice copies between two connections, until both directions have ended.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { pass(a, b) })
	pass(b, a)
	wg.Wait()
}

// pass copies from one connection to another until the first ends, and then ends this direction of the
// other. If the copy fails, it ends both connections.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	if c, ok := to.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	} else {
		to.Close() // ends one direction of a stream
	}
}
