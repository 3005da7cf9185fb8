package rendezvous

import (
	"io"
	"net"
	"sync"

	"github.com/hashicorp/yamux"
)

// service is what a stream of an agent's worker is connected with. It is the first byte of the stream.
type service byte

const (
	storeService       service = 's'
	coordinatorService service = 'c'
)

// forwardAll connects the streams of an agent's workers with the services of the current round, until the
// connection ends. streams counts the goroutines that it starts.
func (h *Host) forwardAll(mux *yamux.Session, streams *sync.WaitGroup) {
	for {
		stream, err := mux.Accept()
		if err != nil {
			return
		}
		streams.Go(func() { h.forward(stream) })
	}
}

func (h *Host) forward(stream net.Conn) {
	defer stream.Close()
	var which [1]byte
	if _, err := io.ReadFull(stream, which[:]); err != nil {
		return
	}
	h.mu.Lock()
	services := h.services
	h.mu.Unlock()
	if services == nil {
		return
	}
	addr := services.store.Addr()
	if service(which[0]) == coordinatorService {
		addr = services.coordinator.Addr().String()
	}
	c, err := net.Dial("tcp", addr) // in this process
	if err != nil {
		return
	}
	defer c.Close()
	splice(stream, c)
}

// halfCloser is a connection one direction of which can be ended.
type halfCloser interface{ CloseWrite() error }

// splice copies between two connections, until both directions have ended.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	copyTo := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			a.Close()
			b.Close()
		}
		if c, ok := dst.(halfCloser); ok {
			c.CloseWrite()
		} else {
			dst.Close() // of a stream, this ends one direction
		}
	}
	wg.Go(func() { copyTo(a, b) })
	copyTo(b, a)
	wg.Wait()
}
