package nccl

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/internal/backend"
)

// Options are the choices of [New]. The zero value is the default.
type Options struct {
	// NoSmallAllReduce makes NCCL run small all-reduces too. If it is set on one rank, it holds for
	// all.
	NoSmallAllReduce bool
}

// New makes this rank's end of a group whose tensors are in the memory of cfg.Device, a GPU. It
// returns when every rank has joined, or when cfg.Timeout has passed.
//
// The error is a *dl.NotFoundError if NCCL's library is missing. It is a [*VersionError],
// [*VersionMismatchError] or [*SharedGPUError] if NCCL cannot serve the group, a [*LateError] if
// some ranks were too late, and an [*Error] if a call of NCCL failed. If another rank failed, it is
// the error of that rank.
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
