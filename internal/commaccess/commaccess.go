// Package commaccess gives the other packages of this module the two things that package
// comm does not export, because their types are internal: the coordinator of a process
// group, and a wrapper around a group's backend. Package comm sets the variables when it is
// initialised.
package commaccess

import (
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// Control returns the coordinator's group of the ranks of pg, a *comm.ProcessGroup.
var Control func(pg any) *coordinator.Group

// WrapBackend makes options, a *comm.Options, put wrap around the backend of the group that
// is made with them, and around the backends of the groups split from that group. Tests use
// it to observe, delay or fail calls.
var WrapBackend func(options any, wrap func(backend.Backend) backend.Backend)
