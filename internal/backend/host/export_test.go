package host

import "github.com/goddp/goddp/internal/coordinator"

// Control returns the group's part at the coordinator.
func (g *Group) Control() *coordinator.Group { return g.cfg.Control }
