package host

import (
	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// What a test needs that opens connections as a rank does.

const Accepted = accepted

// Stall comes to a collective, shows its card, and moves no data. It returns when all
// ranks have shown theirs, and whatever peers say then is not heard until release.
func (g *Group) Stall(c *backend.Call) (release func(), err error) {
	n := g.net.(*linkNet)
	if _, err := n.wire.meet(newPlan(c, g.cfg.Rank, g.cfg.Size, &g.blocks).card()); err != nil {
		return nil, err
	}
	for _, l := range n.links {
		if l != nil {
			l.reading.Lock()
		}
	}
	return func() {
		for _, l := range n.links {
			if l != nil {
				l.reading.Unlock()
			}
		}
	}, nil
}

// Control is the group's part at the coordinator.
func (g *Group) Control() *coordinator.Group { return g.cfg.Control }
