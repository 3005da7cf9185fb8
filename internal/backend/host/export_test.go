package host

import "github.com/goddp/goddp/internal/coordinator"

// What a test needs that opens connections as a rank does.

const Accepted = accepted

// Control is the group's part at the coordinator.
func (g *Group) Control() *coordinator.Group { return g.cfg.Control }
