package comm

import (
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/commaccess"
	"github.com/goddp/goddp/internal/coordinator"
)

func init() {
	commaccess.Control = func(pg any) *coordinator.Group { return pg.(*ProcessGroup).control }
	commaccess.WrapBackend = func(options any, wrap func(backend.Backend) backend.Backend) {
		options.(*Options).wrapBackend = wrap
	}
}
