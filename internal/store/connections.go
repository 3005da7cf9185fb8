package store

import (
	"container/list"
	"fmt"
	"net"

	"github.com/goddp/goddp/internal/wire"
)

// A class of connections says how far a client is authenticated. Each class has separate slots, a
// separate pool of memory and a separate share of the table, so that clients of one class cannot
// starve another.
type class uint8

const (
	// silent: the client has not sent a request. A PyTorch 1.x client keeps such a connection open
	// for its lifetime.
	silent class = iota
	// stranger: the client is neither known to run as this user nor authenticated for the job.
	stranger
	// unproven: the client sends requests, and has not proved that it belongs to the job.
	unproven
	// member: the client has proved that it belongs to the job.
	member
	classes = 4
)

var classNames = [classes]string{"silent connections", "connections of strangers", "connections of clients without proof", "connections"}

// slots holds the open connections of a server, by class, oldest first. It does no locking
// and closes no connection.
type slots struct {
	limits [classes]int
	why    [classes]string    // what lowered the limit of the class; "" if nothing did
	open   [classes]list.List // of net.Conn
	where  map[net.Conn]place
}

type place struct {
	class class
	at    *list.Element
}

func newSlots(limits [classes]int) *slots {
	return &slots{limits: limits, where: make(map[net.Conn]place)}
}

// add adds a new connection to the class silent. If the class is full, add removes and
// returns another connection, which the caller must close.
func (s *slots) add(nc net.Conn) (evicted net.Conn) {
	evicted = s.freeSlot(silent)
	s.put(nc, silent)
	return evicted
}

// freeSlot makes sure that a class has a free slot. If the class is full, freeSlot removes
// and returns one of its connections, which the caller must close.
func (s *slots) freeSlot(c class) net.Conn {
	if s.open[c].Len() < s.limits[c] {
		return nil
	}
	return s.evict(c)
}

// evict removes and returns the connection of median age of a class; nil if the class is
// empty. So a flood of new connections spares the older half, which existed before the
// flood, and the newest ones, among which may be a client that is about to be admitted.
func (s *slots) evict(c class) net.Conn {
	e := s.open[c].Front()
	if e == nil {
		return nil
	}
	for range s.open[c].Len() / 2 {
		e = e.Next()
	}
	nc := e.Value.(net.Conn)
	s.remove(nc)
	return nc
}

// move moves nc to another class. It returns ErrLimit if that class is full, and
// net.ErrClosed if nc was closed.
func (s *slots) move(nc net.Conn, to class) error {
	if _, open := s.where[nc]; !open {
		return net.ErrClosed
	}
	if s.open[to].Len() >= s.limits[to] {
		return s.full(to)
	}
	s.remove(nc)
	s.put(nc, to)
	return nil
}

func (s *slots) put(nc net.Conn, c class) {
	s.where[nc] = place{c, s.open[c].PushBack(nc)}
}

// remove frees the slot of nc, if it has one.
func (s *slots) remove(nc net.Conn) {
	if p, open := s.where[nc]; open {
		s.open[p.class].Remove(p.at)
		delete(s.where, nc)
	}
}

// full returns the error for a class that has no free slot.
func (s *slots) full(c class) error {
	return fmt.Errorf("%w%s", limitError(classNames[c], s.limits[c]+1, s.limits[c]), s.why[c])
}

// fitDescriptors lowers the limits of the classes so that the server's connections
// leave some of the file descriptors to the rest of the process.
func (s *slots) fitDescriptors() {
	for c, limit := range s.limits {
		s.limits[c], s.why[c] = wire.ShareFiles(limit, "the store's process")
	}
}
