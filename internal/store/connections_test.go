package store

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// Clients without proof cannot use up the members' share of the table, of the connections
// and of the memory in flight.
func TestUnprovenClientsLeaveConnectionsForMembers(t *testing.T) {
	lines, logger := newLog()
	s := listen(t, &ServerOptions{
		Logger: logger, Clients: 4, InFlightBytes: 100 << 10, Limits: Limits{TableBytes: 100 << 10},
		Unproven: Quota{Clients: 2, InFlightBytes: 50 << 10, TableBytes: 50 << 10},
	})
	host := s.Local()
	guest := dial(t, s.Addr(), nil)
	if err := guest.Set(withPatience(t), "a", make([]byte, 40<<10)); err != nil {
		t.Fatal(err)
	}
	if err := guest.Set(withPatience(t), "b", make([]byte, 20<<10)); !errors.Is(err, ErrServerLost) {
		t.Errorf("a value that does not fit into what is left: %v", err)
	}
	lines.expect(t, "bytes in the table, at most 51200")
	if err := host.Set(withPatience(t), "b", make([]byte, 20<<10)); err != nil {
		t.Errorf("a member: %v", err)
	}
	// The table is now larger than these clients may make it. They may still make it
	// smaller.
	if err := guest.Set(withPatience(t), "a", make([]byte, 30<<10)); err != nil {
		t.Errorf("a shorter value: %v", err)
	}
	waitFor(t, func() bool { // the rejected connection is gone
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.slots.open[unproven].Len() == 1
	})
	for _, c := range []struct {
		to  class
		err error
	}{{unproven, nil}, {unproven, ErrLimit}, {member, nil}} {
		nc, _ := net.Pipe()
		defer nc.Close()
		s.mu.Lock()
		s.slots.add(nc)
		err := s.slots.move(nc, c.to)
		s.mu.Unlock()
		if !errors.Is(err, c.err) {
			t.Errorf("a connection of class %d: %v, want %v", c.to, err, c.err)
		}
	}
	conn := func(to class) *account { return &account{pool: s.pools[to]} }
	if err := conn(unproven).take(50<<10 + ownBytes); err != nil {
		t.Error(err)
	}
	for to, want := range []error{silent: ErrLimit, stranger: ErrLimit, unproven: ErrLimit, member: nil} {
		self := conn(class(to))
		if err := self.take(ownBytes); err != nil {
			t.Errorf("class %d: what is a connection's own: %v", to, err)
		}
		if err := self.take(1); !errors.Is(err, want) {
			t.Errorf("class %d: %v, want %v", to, err, want)
		}
	}
}

// A flood of silent connections keeps no client out, and spares the connections that
// existed before it. A PyTorch 1.x client spins on a CPU if its second connection is
// closed.
func TestSilentConnectionsAreEvicted(t *testing.T) {
	s := newSlots([classes]int{silent: 6, unproven: 1})
	var all []net.Conn
	evicted := map[net.Conn]bool{}
	for range 100 {
		nc, other := net.Pipe()
		defer nc.Close()
		defer other.Close()
		all = append(all, nc)
		if victim := s.add(nc); victim != nil {
			evicted[victim] = true
		}
	}
	for i, nc := range all {
		if want := i >= 3 && i < 97; evicted[nc] != want {
			t.Errorf("connection %d of 100 makes room: %v, want %v", i, evicted[nc], want)
		}
	}
	if err := s.move(all[99], unproven); err != nil {
		t.Error(err)
	}
	for n := s.open[silent].Len(); n > 0; n-- { // for want of descriptors
		if s.evict(silent) == nil {
			t.Errorf("none makes room, with %d silent", n)
		}
	}
	if nc := s.evict(silent); nc != nil || s.open[unproven].Len() != 1 {
		t.Errorf("%v makes room, which is not silent", nc)
	}
}

func TestServerClosesSilentConnections(t *testing.T) {
	lines, logger := newLog()
	s := listen(t, &ServerOptions{Logger: logger, Unproven: Quota{Clients: 3}})
	busy := dialRaw(t, s)
	busy.send(hello + numKeys)
	busy.expect("0000000000000000")
	var mute []rawConn
	for range 4 {
		mute = append(mute, dialRaw(t, s))
	}
	mute[1].expectClosed()
	lines.expect(t, "4 silent connections, at most 3", "peer="+mute[1].LocalAddr().String())
	last := dialRaw(t, s)
	last.send(hello + numKeys)
	last.expect("0000000000000000")
	for _, c := range []rawConn{mute[0], mute[3], busy} {
		c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); !isTimeout(err) {
			t.Errorf("read %d, %v on a connection that may stay", n, err)
		}
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func TestFitDescriptors(t *testing.T) {
	s := newSlots([classes]int{1, 1 << 40, 5, 7})
	s.fitDescriptors()
	if got := s.limits; got[0] != 1 || got[2] != 5 || got[1] >= 1<<40 || got[1] < 10 {
		t.Errorf("got %v", got)
	}
	if err := s.full(1).Error(); !strings.Contains(err, "files: raise its limit (ulimit -n)") || s.why[0] != "" {
		t.Errorf("got %q, %q", err, s.why)
	}
}
