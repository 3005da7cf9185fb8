package buckets

import (
	"context"
	"fmt"
	"slices"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// scan looks for gradients that are not finite. The compute stream checks each gradient as soon as the
// gradient is final, before its reduction, which would spread a NaN or an infinity to all ranks.
type scan struct {
	dev       device.Device
	flags     device.Tensor // one byte per parameter; not 0: the gradient is not finite
	hostFlags device.Buffer // host memory: a copy of flags
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

// free frees the memory that newScan has allocated.
func (s *scan) free() {
	s.dev.Free(s.flags.Buf)
	s.dev.Free(s.hostFlags)
}

// begin sets all flags to 0 at the start of a pass.
func (s *scan) begin() error { return s.dev.Kernels().Fill(s.dev.Compute(), s.flags, 0) }

// check enqueues a kernel that sets flag i if grad, the gradient of parameter i, is not finite.
func (s *scan) check(i int, grad device.Tensor) error {
	return kernels.Of(s.dev).NonFinite(s.dev.Compute(), s.flags.Range(i, i+1), grad)
}

// copyToHost enqueues a copy of flags to hostFlags. hostFlags is valid after the returned event.
func (s *scan) copyToHost() (device.Event, error) {
	err := s.dev.Copy(s.dev.Compute(), s.hostFlags, s.flags.Buf)
	return s.dev.Compute().Mark(), err
}

// nonFinite describes the gradients of this rank that are not finite in the current pass. It returns nil
// if all are finite. nonFinite waits until the device has checked all gradients of the pass, because this
// rank must raise its flag before the status is reduced.
func (r *Reducer) nonFinite(ctx context.Context) (*reducer.NonFinite, error) {
	at, err := r.scan.copyToHost()
	if err == nil {
		err = reach(ctx, at, r.pg.Timeout())
	}
	if err != nil {
		return nil, fmt.Errorf("reducer: rank %d: checking for gradients that are not finite: %w", r.pg.Rank(), err)
	}
	flags, found := r.scan.hostFlags.Host(), reducer.NonFinite{Rank: r.pg.Rank()}
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
