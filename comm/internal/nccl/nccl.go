package nccl

import (
	"cmp"
	"context"
	"fmt"

	"github.com/goddp/goddp/internal/backend"
)

// Options configure [New]. The zero value is the default.
type Options struct {
	// NoSmallAllReduce makes NCCL run small all-reduces too. If it is set on one rank, it applies
	// to all.
	NoSmallAllReduce bool
}

// New creates this rank's handle of a group with tensors on cfg.Device, a GPU. It returns when
// every rank has joined, or after cfg.Timeout.
//
// The error is a *dl.NotFoundError if NCCL's library is missing. It is a [*VersionError],
// [*VersionMismatchError] or [*SharedGPUError] if NCCL does not support the group, a [*LateError]
// if some ranks were too late, and an [*Error] if an NCCL call failed. If another rank failed, it
// is that rank's error.
func New(ctx context.Context, cfg backend.Config, opts *Options) (backend.Backend, error) {
	o := *cmp.Or(opts, &Options{})
	b, err := open(ctx, cfg, o)
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d of %d joining its group: %w", cfg.Rank, cfg.Size, err)
	}
	return b, nil
}
