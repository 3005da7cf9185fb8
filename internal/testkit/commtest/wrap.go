package commtest

import (
	"cmp"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/backend"
)

// WrapBackend returns a copy of opts, which may be nil, with which wrap is put around the
// group's backend, and around the backends of the groups split from it. A test can thereby
// observe, delay or fail calls.
func WrapBackend(opts *comm.Options, wrap func(backend.Backend) backend.Backend) *comm.Options {
	o := *cmp.Or(opts, &comm.Options{})
	backend.Wrap(&o, wrap)
	return &o
}
