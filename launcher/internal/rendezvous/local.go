package rendezvous

import (
	"net"
	"time"
)

// Join has an agent in the host's own process join. masterPort is a free port of this host.
func (h *Host) Join(node NodeInfo, masterPort int) *Session {
	s := newSession(node.Workers)
	s.local = true
	p := &peer{local: true}
	p.send = func(m *toAgent) bool {
		err := s.receive(m)
		if err != nil {
			s.put(Order{Err: err})
		}
		return err == nil
	}
	p.cut = func() { s.put(Order{Err: &HostLostError{"this node", net.ErrClosed}}) }
	s.send = func(m *toHost) {
		if err := h.receive(p, m); err != nil {
			s.put(Order{Err: err})
		}
	}
	s.cut = func() { h.detach(p, "it closed its session", time.Now()) }
	s.send(&toHost{Join: &joinMessage{node, h.opts.Limits, masterPort}})
	return s
}
