package store

import (
	"container/list"
	"fmt"
	"net"

	"github.com/goddp/goddp/internal/descriptors"
)

// A class is what the server knows of the client at the other end of a
// connection. Classes have slots, pools and a share of the table of their own,
// so that what clients of one class hold does not keep those of another out.
type class uint8

const (
	// silent: it has not asked for anything. A PyTorch 1.x client keeps such a
	// connection open for as long as it lives.
	silent class = iota
	// stranger: it is not known to be of this user, and has not proved to belong to
	// the job.
	stranger
	// unproven: it asks, and has not proved to belong to the job.
	unproven
	// member: it has proved to belong to the job.
	member
	classes = 4
)

var classNames = [classes]string{"silent connections", "connections of strangers", "connections of clients without proof", "connections"}

// slots are the open connections of a server, oldest first in each class. Slots
// does no locking and closes no connection.
type slots struct {
	limits [classes]int
	why    [classes]string    // what bounds the class, where the limit does not
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

// add takes a slot for a new connection, which is silent.
func (s *slots) add(nc net.Conn) (evicted net.Conn) {
	evicted = s.freeSlot(silent)
	s.put(nc, silent)
	return evicted
}

// freeSlot makes sure that a class has a free slot. If it has none, one of its
// connections is taken out: freeSlot returns it, and the caller closes it.
func (s *slots) freeSlot(c class) net.Conn {
	if s.open[c].Len() < s.limits[c] {
		return nil
	}
	return s.evict(c)
}

// evict takes out the median, by age, of a class's connections; nil if there is none.
// A flood of them thus leaves alone the older half, which was there before, and the
// newer half, among which may be a client that is about to say who it is.
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

// full is the error of a class that has no free slot.
func (s *slots) full(c class) error {
	return fmt.Errorf("%w%s", limitError(classNames[c], s.limits[c]+1, s.limits[c]), s.why[c])
}

// fitDescriptors lowers the limits of the classes so that the server's connections
// leave some of the file descriptors to the rest of the process.
func (s *slots) fitDescriptors() {
	for c, limit := range s.limits {
		s.limits[c], s.why[c] = descriptors.Share(limit, "the store's process")
	}
}
