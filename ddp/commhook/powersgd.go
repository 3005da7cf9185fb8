package commhook

import (
	"errors"
	"fmt"
	"math"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// PowerSGDOptions are the choices of [NewPowerSGD]; the zero value is PyTorch's
// default.
type PowerSGDOptions struct {
	// Rank is that of the products that matrices are sent as; 0: 1. Twice the
	// rank costs twice the bytes, and loses less.
	Rank int
	// StartAfter is how many passes go to Hook as they are, before the first that
	// is compressed, as gradients change most at first; 0: 1000; negative: none.
	StartAfter int
	// MinCompression is how many times larger than its factors a matrix must be,
	// at the least, to be compressed; 0: 2.
	MinCompression float64
	// NoErrorFeedback forgets what a pass did not send. Otherwise it is added to
	// the gradients of the next one, which takes the memory of the gradients of
	// what is compressed once more.
	NoErrorFeedback bool
	// NoWarmStart begins each pass with random factors, in place of those that
	// the last one ended with.
	NoWarmStart bool
	// Seed is that of the random numbers.
	Seed uint64
	// Hook reduces the factors, and what is not compressed; nil: AllReduce.
	Hook reducer.Hook
}

// PowerSGDOptionError says that an option makes no sense.
type PowerSGDOptionError struct {
	Option string
	Value  any
	Want   string
}

func (e *PowerSGDOptionError) Error() string {
	return fmt.Sprintf("commhook: PowerSGD: %s is %v, want %s", e.Option, e.Value, e.Want)
}

// PowerSGD sends a matrix of gradients as a product of two thin ones: Vogels,
// Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
// Distributed Optimization", 2019. A gradient of more axes is a matrix of the first
// by all others. With N ranks, for a matrix M [n m], Q [m r] from the pass before:
//
//	M += what was not sent before
//	P = M·Q, Q's columns made orthonormal         summed over the ranks: n·r numbers
//	Q = Mᵀ·P, P's columns made orthonormal        summed over the ranks: m·r numbers
//	what is not sent = M - P·Qᵀ, with M the average
//	M = P·Qᵀ
//
// P travels with what is not compressed while the backward pass runs, Q behind it.
// The factors are in Float32, or in Float64 where the gradients are. A bucket whose
// gradients are not finite, on any rank, leaves what was not sent before as it was. A
// pass that is skipped for another reason, such as a missing gradient or what is not
// finite in another bucket, leaves what it did not send.
//
// All ranks have made as many passes: one that joins others anew is given the State
// of one of them, but for what that has not sent, or all begin with new hooks. Factors
// that differ between ranks, as a failure may leave them, do no harm: those that a pass
// ends with are the same.
type PowerSGD struct {
	o        PowerSGDOptions
	passes   int
	mem      memory[*factors]
	twoPhase twoPhase
	dev      device.Device
	kept     map[string]device.Tensor // by its name in a state: what is in use
	loaded   map[string]device.Tensor // in the host's memory: what LoadState was given and no pass has used
}

// NewPowerSGD is a PowerSGD. The error is a [*PowerSGDOptionError].
func NewPowerSGD(opts *PowerSGDOptions) (*PowerSGD, error) {
	var o PowerSGDOptions
	if opts != nil {
		o = *opts
	}
	if o.Rank < 0 {
		return nil, &PowerSGDOptionError{"Rank", o.Rank, "1 or more, or 0 for 1"}
	}
	if !(o.MinCompression >= 0) || math.IsInf(o.MinCompression, 1) {
		return nil, &PowerSGDOptionError{"MinCompression", o.MinCompression, "a positive number, or 0 for 2"}
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

// Partial tells whether the hook that reduces the factors is.
func (h *PowerSGD) Partial() bool { return reducer.IsPartial(h.o.Hook) }

// Reduce is a reducer's to call.
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

// project makes the factors P, beside what is not compressed.
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

// iterate makes the factors Q, when the Ps are summed.
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

// restore makes the gradients of their factors, and keeps what these lack.
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

// keep keeps what the factors lack: of this rank's share of the average, the
// gradients less one in so many ranks of the product. The step below sets what is
// kept to that (v -= -1·(u - 1·v)), unless something is not finite, among what is not
// compressed too: such a pass is not applied, and what was kept before it is still to be
// sent.
func (f *factors) keep() error {
	k, s := f.device()
	if err := k.Fill(s, f.invalid, 0); err != nil {
		return err
	}
	if len(f.rest) > 0 { // the sums over the ranks, beside the Ps, which are orthonormal
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
