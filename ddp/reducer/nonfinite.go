package reducer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// NonFiniteError says which gradients held a NaN or an infinity before they
// were reduced, in a pass of a Reducer that looks for such. Every rank gets it
// for that pass; none applies the step, and the group stays usable. It matches
// [device.ErrSkipped], as a [*MissingGradientError] does, and may come joined
// with one.
type NonFiniteError struct {
	Found []NonFinite // by rank
}

// NonFinite is what one rank found in its own gradients.
type NonFinite struct {
	Rank   int
	Bucket int    // the first, in the order in which they are reduced
	Param  string // the first in that bucket, in order of registration
	Params int    // how many parameters' gradients, in all buckets
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

// Is makes errors.Is(err, device.ErrSkipped) hold.
func (e *NonFiniteError) Is(target error) bool { return target == device.ErrSkipped }

// scan looks for gradients that are not finite. It looks at each once it is
// final, on the compute stream and before its reduction, which would spread
// what it finds to all ranks.
type scan struct {
	dev   device.Device
	flags device.Tensor // a byte for each parameter, raised by the device
	seen  device.Buffer // where the host sees them
}

func newScan(dev device.Device, params int) (*scan, error) {
	flags, err := dev.Alloc(params)
	if err != nil {
		return nil, err
	}
	seen, err := dev.AllocHost(params)
	if err != nil {
		dev.Free(flags)
		return nil, err
	}
	return &scan{dev: dev, flags: device.NewTensor(flags, device.Uint8, params), seen: seen}, nil
}

// begin lowers the flags for a pass.
func (s *scan) begin() error { return s.dev.Kernels().Fill(s.dev.Compute(), s.flags, 0) }

// look raises flag i if the gradient is not finite.
func (s *scan) look(i int, grad device.Tensor) error {
	return kernels.Of(s.dev).NonFinite(s.dev.Compute(), s.flags.Range(i, i+1), grad)
}

// show enqueues what shows the flags to the host; they are in seen behind the
// event.
func (s *scan) show() (device.Event, error) {
	err := s.dev.Copy(s.dev.Compute(), s.seen, s.flags.Buf)
	return s.dev.Compute().Mark(), err
}

// nonFinite is what this rank's gradients of the pass hold, nil if they are
// finite. It waits for the device to get through the pass: what is found has
// to be told before the last bucket is reduced.
func (r *Reducer) nonFinite(ctx context.Context) (*NonFinite, error) {
	at, err := r.scan.show()
	if err == nil {
		err = reach(ctx, at, r.pg.Timeout())
	}
	if err != nil {
		return nil, fmt.Errorf("reducer: rank %d: looking for gradients that are not finite: %w", r.pg.Rank(), err)
	}
	flags, found := r.scan.seen.Host(), NonFinite{Rank: r.pg.Rank()}
	for i, b := range r.buckets {
		for _, p := range slices.Sorted(slices.Values(b.Params)) {
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
