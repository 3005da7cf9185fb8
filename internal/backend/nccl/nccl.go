package nccl

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/internal/backend"
)

// Options are the choices of [New]; the zero value is the good default.
type Options struct {
	// NoSmallAllReduce leaves all-reduces of few bytes to NCCL. One rank's is enough.
	NoSmallAllReduce bool
}

// New makes this rank's end of a group, whose tensors are in the memory of
// cfg.Device, a GPU. It returns when every rank has come, within cfg.Timeout.
//
// The error is a *dl.NotFoundError where there is no library, a
// [*VersionError], [*VersionMismatchError] or [*SharedGPUError] where NCCL
// cannot serve the group, a [*LateError] where the time was over first, an [*Error]
// for a call of NCCL's that failed, and the peer's where another rank's part failed.
func New(ctx context.Context, cfg backend.Config, opts *Options) (backend.Backend, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	b, err := open(ctx, cfg, o)
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d of %d joining its group: %w", cfg.Rank, cfg.Size, err)
	}
	return b, nil
}
