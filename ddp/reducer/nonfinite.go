package reducer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// NonFiniteError lists gradients that held a NaN or an infinity before they were reduced. Only a
// Reducer with Options.CheckNonFinite looks for them. Every rank gets it for that pass. No rank applies
// the step, and the group remains usable. It matches [device.ErrSkipped]. It may be joined with a
// [*MissingGradientError].
type NonFiniteError struct {
	Found []NonFinite // by rank
	skipped
}

// NonFinite describes what one rank found in its own gradients.
type NonFinite struct {
	Rank   int
	Bucket int    // the first bucket with such a gradient, in the order of reduction
	Param  string // the first such parameter in that bucket, in order of registration
	Params int    // the number of parameters with such gradients, in all buckets
}

func (e *NonFiniteError) Error() string {
	var b strings.Builder
	b.WriteString("NaN or Inf in the gradient of ")
	for i, f := range e.Found {
		if i > 0 {
			b.WriteString("; of ")
		}
		fmt.Fprintf(&b, "parameter %q, in bucket %d,", f.Param, f.Bucket)
		if f.Params > 1 {
			fmt.Fprintf(&b, " and %d more", f.Params-1)
		}
		fmt.Fprintf(&b, " on rank %d", f.Rank)
	}
	b.WriteString(": the step is skipped on every rank")
	return b.String()
}

// scan looks for gradients that are not finite. It checks each gradient when it is final, on the
// compute stream, before a reduction would spread the NaN or infinity to all ranks.
type scan struct {
	dev       device.Device
	flags     device.Tensor // one byte per parameter, raised by the device
	hostFlags device.Buffer // a copy of flags for the host
}

func newScan(dev device.Device, params int) (*scan, error) {
	flags, err := dev.Alloc(params)
	if err != nil {
		return nil, err
	}
	hostFlags, err := dev.AllocHost(params)
	if err != nil {
		dev.Free(flags)
		return nil, err
	}
	return &scan{dev: dev, flags: device.NewTensor(flags, device.Uint8, params), hostFlags: hostFlags}, nil
}

// begin lowers all flags at the start of a pass.
func (s *scan) begin() error { return s.dev.Kernels().Fill(s.dev.Compute(), s.flags, 0) }

// check raises flag i if the gradient is not finite.
func (s *scan) check(i int, grad device.Tensor) error {
	return kernels.Of(s.dev).NonFinite(s.dev.Compute(), s.flags.Range(i, i+1), grad)
}

// copyToHost enqueues the copy of the flags to the host. hostFlags is valid after the event.
func (s *scan) copyToHost() (device.Event, error) {
	err := s.dev.Copy(s.dev.Compute(), s.hostFlags, s.flags.Buf)
	return s.dev.Compute().Mark(), err
}

// nonFinite returns what the check of this rank's gradients found in the current pass, nil if all are
// finite. It waits for the device to finish the pass, because the result travels before the last bucket.
func (r *Reducer) nonFinite(ctx context.Context) (*NonFinite, error) {
	at, err := r.scan.copyToHost()
	if err == nil {
		err = reach(ctx, at, r.pg.Timeout())
	}
	if err != nil {
		return nil, fmt.Errorf("reducer: rank %d: checking for gradients that are not finite: %w", r.pg.Rank(), err)
	}
	flags, found := r.scan.hostFlags.Host(), NonFinite{Rank: r.pg.Rank()}
	for i, b := range r.buckets {
		for _, p := range slices.Sorted(slices.Values(b.params)) {
			if flags[p] == 0 {
				continue
			}
			if found.Params++; found.Params == 1 {
				found.Bucket, found.Param = i, r.params[p].Name
			}
		}
	}
	if found.Params == 0 {
		return nil, nil
	}
	return &found, nil
}
