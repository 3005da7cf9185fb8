package commhook

import (
	"errors"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// factors are a bucket as PowerSGD sends it.
type factors struct {
	first     reducer.GradBucket // all Ps, and what is not compressed
	second    reducer.GradBucket // all Qs
	matrices  []matrix
	rest      []pair        // gradients that are not compressed, and their places in first
	converted []pair        // gradients of 16 bits, and the matrices that stand for them
	spoilt    device.Tensor // a byte: the pass is not finite
}

// matrix is a gradient that is compressed. Its factors lie as their transposes, as
// rows are what a kernel makes orthonormal.
type matrix struct {
	grad           device.Tensor // [n m]
	p, q           device.Tensor // [r n], [r m]
	spareP, spareQ device.Tensor // random numbers
	unsent         device.Tensor // [n m]; not there without error feedback
}

// pair is a gradient and what stands for it.
type pair struct{ grad, work device.Tensor }

func (f *factors) device() (device.Kernels, device.Stream) {
	d := f.first.Group.Device()
	return d.Kernels(), d.Compute()
}

// compressed is the shape of a gradient as a matrix, and the rank of its factors; 0
// where it is to be sent as it is.
func (h *PowerSGD) compressed(shape device.Shape) (n, m, rank int) {
	if len(shape) < 2 || shape.Len() == 0 {
		return 0, 0, 0
	}
	n = shape[0]
	m = shape.Len() / n
	rank = min(h.o.Rank, n, m)
	if float64((n+m)*rank)*h.o.MinCompression >= float64(n*m) {
		return 0, 0, 0
	}
	return n, m, rank
}

// factors lays out the memory for a bucket.
func (h *PowerSGD) factors(b reducer.GradBucket) (*factors, error) {
	type places struct{ p, q, unsent place }
	var ps, qs, unsent pool
	at := make([]places, len(b.Grads))
	for i, g := range b.Grads {
		if n, m, rank := h.compressed(g.Shape); rank > 0 {
			at[i] = places{ps.add(rank, n), qs.add(rank, m), unsent.add(n, m)}
		}
	}
	for i, g := range b.Grads {
		if _, _, rank := h.compressed(g.Shape); rank == 0 {
			at[i].p = ps.add(g.Shape...)
		}
	}
	f := &factors{}
	if qs.size == 0 {
		return f, nil
	}
	dt := device.Float32
	if b.Flat.DType == device.Float64 {
		dt = device.Float64
	}
	var errs []error
	array := func(dt device.DType, n int) device.Tensor {
		t, err := alloc(b, dt, n)
		errs = append(errs, err)
		return t
	}
	p, q, spares := array(dt, ps.size), array(dt, qs.size), array(dt, max(ps.size, qs.size))
	f.spoilt = array(device.Uint8, 1)
	var kept, work device.Tensor
	if !h.o.NoErrorFeedback {
		kept = array(dt, unsent.size)
	}
	if b.Flat.DType != dt {
		work = array(dt, unsent.size)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	f.first, f.second = h.part(b, "P of "+b.Name, p), h.part(b, "Q of "+b.Name, q)
	k, s := f.device()
	if err := k.Uniform(s, spares, -1, 1, h.o.Seed, 0); err != nil {
		return nil, err
	}
	for i, g := range b.Grads {
		if len(at[i].q.shape) == 0 {
			f.rest = append(f.rest, pair{g, at[i].p.in(p)})
			continue
		}
		m := matrix{
			p: at[i].p.in(p), q: at[i].q.in(q), spareP: at[i].p.in(spares), spareQ: at[i].q.in(spares),
			grad: g.Reshape(at[i].unsent.shape...),
		}
		if !work.IsZero() {
			c := pair{m.grad, at[i].unsent.in(work)}
			f.converted, m.grad = append(f.converted, c), c.work
		}
		if !h.o.NoErrorFeedback {
			m.unsent = at[i].unsent.in(kept)
		}
		f.matrices = append(f.matrices, m)
		if err := h.resume(b.Group.Device(), b.Params[i].Name, m); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// part is memory in the place of b that is one array to the hook below.
func (h *PowerSGD) part(b reducer.GradBucket, name string, flat device.Tensor) reducer.GradBucket {
	return within(b, name, flat, []reducer.Param{{Name: name, Shape: flat.Shape, DType: flat.DType}}, []device.Tensor{flat})
}
