package commhook

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// PowerSGDOptions are the options of [NewPowerSGD]. The zero value is PyTorch's default.
type PowerSGDOptions struct {
	// Rank is the rank of the two factors that replace a matrix; 0 means 1. If Rank is doubled, twice as many
	// bytes are sent, and the product is closer to the matrix.
	Rank int
	// StartAfter is the number of passes at the beginning that are not compressed, because gradients change most
	// then. 0 means 1000, a negative number none.
	StartAfter int
	// MinCompression is a ratio. A matrix is compressed only if it has more than MinCompression
	// times as many elements as its two factors together. 0 means 2.
	MinCompression float64
	// NoErrorFeedback discards the difference between a gradient and the product of its factors.
	// Otherwise the difference is added to the gradient of the next pass, which takes as much
	// memory as the compressed gradients.
	NoErrorFeedback bool
	// NoWarmStart starts each pass with random factors, instead of the factors of the pass before.
	NoWarmStart bool
	// Seed is the seed of the random numbers.
	Seed uint64
	// Hook reduces the factors, and the gradients that are not compressed; nil means AllReduce.
	Hook reducer.Hook
}

// PowerSGD sends a matrix of gradients as a product of two thin matrices: Vogels, Karimireddy and
// Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019. A
// gradient with more than two axes is treated as a matrix whose columns combine all axes but the
// first. On each of N ranks, M [n m] is this rank's gradient divided by N, Q [m r] is the factor of
// the pass before, and E [n m] is the error feedback:
//
//	M += E
//	make Q's columns orthonormal, P = M·Q      sum P over the ranks: n·r numbers
//	make P's columns orthonormal, Q = Mᵀ·P     sum Q over the ranks: m·r numbers
//	E = M - P·Qᵀ/N
//	gradient = P·Qᵀ
//
// P is reduced during the backward pass, together with the gradients that are not compressed. Q is
// reduced after the pass. The factors are Float64 if the gradients are, else Float32. If any rank has a
// gradient in a bucket that is not finite, the error feedback of that bucket does not change. A pass that is
// skipped for another reason, such as a missing gradient or a gradient of another bucket that is
// not finite, still updates the error feedback.
//
// All ranks must have made the same number of passes. If a rank joins later, give its hook the
// State of another rank, without that rank's error feedback, or start all ranks with new hooks.
// Factors may differ between ranks at the start of a pass, for example after a failure; they are
// equal at its end.
type PowerSGD struct {
	o        PowerSGDOptions
	passes   int
	mem      memory[*factors]
	twoPhase twoPhase
	dev      device.Device
	kept     map[string]device.Tensor // by name in State: the tensors in use
	loaded   map[string]device.Tensor // in host memory: the tensors from LoadState that no pass has used yet
}

// NewPowerSGD returns a PowerSGD, or an error if an option has an invalid value.
func NewPowerSGD(opts *PowerSGDOptions) (*PowerSGD, error) {
	o := *cmp.Or(opts, &PowerSGDOptions{})
	if o.Rank < 0 {
		return nil, fmt.Errorf("commhook: PowerSGD: Rank is %d, want at least 1, or 0 for the default of 1", o.Rank)
	}
	if !(o.MinCompression >= 0) || math.IsInf(o.MinCompression, 1) {
		return nil, fmt.Errorf("commhook: PowerSGD: MinCompression is %v, want a positive finite number, or 0 for the default of 2", o.MinCompression)
	}
	if o.Rank == 0 {
		o.Rank = 1
	}
	if o.StartAfter == 0 {
		o.StartAfter = 1000
	}
	if o.MinCompression == 0 {
		o.MinCompression = 2
	}
	o.Hook = orAllReduce(o.Hook)
	return &PowerSGD{o: o, kept: map[string]device.Tensor{}, loaded: map[string]device.Tensor{}}, nil
}

func (h *PowerSGD) String() string {
	return fmt.Sprintf("PowerSGD of rank %d after %d passes, from a compression of %v on, error feedback %v, warm start %v, seed %d, then %v",
		h.o.Rank, max(h.o.StartAfter, 0), h.o.MinCompression, !h.o.NoErrorFeedback, !h.o.NoWarmStart, h.o.Seed, h.o.Hook)
}

// Partial returns [reducer.IsPartial] of the hook that reduces the factors.
func (h *PowerSGD) Partial() bool { return reducer.IsPartial(h.o.Hook) }

// Reduce implements [reducer.Hook]. Only a reducer calls it.
func (h *PowerSGD) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Index == 0 {
		h.passes++
	}
	if h.passes <= h.o.StartAfter {
		return h.o.Hook.Reduce(b)
	}
	f, err := h.mem.of(b, func() (*factors, error) { return h.factors(b) })
	if err != nil {
		return failed(b, err)
	}
	if len(f.matrices) == 0 {
		return h.o.Hook.Reduce(b)
	}
	if err := errors.Join(divide(b), h.project(f)); err != nil {
		return failed(b, err)
	}
	first := f.first
	first.After = b.Ready(first.Flat.Bytes())
	return h.twoPhase.start(h.o.Hook.Reduce(first), func() (reducer.Reduction, error) {
		err := f.iterate()
		return h.o.Hook.Reduce(f.second), err
	}, func() error { return h.restore(f) })
}

// project computes the factors P, and copies the gradients that are not compressed to the same
// bucket.
func (h *PowerSGD) project(f *factors) error {
	k, s := f.device()
	for _, c := range f.converted {
		if err := k.Copy(s, c.work, c.grad); err != nil {
			return err
		}
	}
	if h.o.NoWarmStart {
		if err := k.Uniform(s, f.second.Flat, -1, 1, h.o.Seed, uint64(h.passes)*uint64(f.second.Flat.Len())); err != nil {
			return err
		}
	}
	for _, m := range f.matrices {
		if !h.o.NoErrorFeedback {
			if err := k.Axpby(s, m.grad, device.Accum{Alpha: 1, Beta: 1}, m.unsent); err != nil {
				return err
			}
		}
		if err := k.Orthonormalize(s, m.q, m.randomQ); err != nil {
			return err
		}
		if err := k.MatMul(s, m.p, device.Store, m.q, false, m.grad, true); err != nil {
			return err
		}
	}
	for _, r := range f.rest {
		if err := k.Copy(s, r.work, r.grad); err != nil {
			return err
		}
	}
	return nil
}

// iterate computes the factors Q from the summed Ps.
func (f *factors) iterate() error {
	k, s := f.device()
	for _, m := range f.matrices {
		if err := k.Orthonormalize(s, m.p, m.randomP); err != nil {
			return err
		}
		if err := k.MatMul(s, m.q, device.Store, m.p, false, m.grad, false); err != nil {
			return err
		}
	}
	return nil
}

// restore computes the gradients from the summed factors, and updates the error feedback.
func (h *PowerSGD) restore(f *factors) error {
	k, s := f.device()
	if !h.o.NoErrorFeedback {
		if err := f.keep(); err != nil {
			return err
		}
	}
	for _, m := range f.matrices {
		if err := k.MatMul(s, m.grad, device.Store, m.p, true, m.q, false); err != nil {
			return err
		}
	}
	for _, pairs := range [][]pair{f.rest, f.converted} {
		for _, c := range pairs {
			if err := k.Copy(s, c.grad, c.work); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep sets the error feedback: this rank's gradients, already divided by the number of ranks,
// minus P·Qᵀ divided by the number of ranks. The kernel for SGD does the assignment (v -= -1·(u - 1·v)). It
// leaves the old error feedback if a gradient of the bucket is not finite, because such a pass is not applied and
// the old error feedback is still to be sent.
func (f *factors) keep() error {
	k, s := f.device()
	if err := k.Fill(s, f.invalid, 0); err != nil {
		return err
	}
	if len(f.rest) > 0 { // summed over the ranks; the Ps in the same bucket are orthonormal, thus finite
		if err := k.NonFinite(s, f.invalid, f.first.Flat); err != nil {
			return err
		}
	}
	share := device.Accum{Alpha: -1 / float64(f.first.Group.Size()), Beta: 1}
	for _, m := range f.matrices {
		if err := k.MatMul(s, m.grad, share, m.p, true, m.q, false); err != nil {
			return err
		}
		if err := k.NonFinite(s, f.invalid, m.grad); err != nil {
			return err
		}
	}
	for _, m := range f.matrices {
		if err := k.SGD(s, kernels.SGDStep{Param: m.unsent, Grad: m.grad, LR: -1, WeightDecay: -1, Skip: f.invalid}); err != nil {
			return err
		}
	}
	return nil
}
