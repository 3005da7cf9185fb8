package commhook

import (
	"errors"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// factors are PowerSGD's buffers for a bucket. The fields first and second are the two buckets that PowerSGD
// sends. Each pass sets their After events.
type factors struct {
	first     reducer.GradBucket // all Ps, and the gradients that are not compressed
	second    reducer.GradBucket // all Qs
	matrices  []matrix
	rest      []pair        // the gradients that are not compressed, and their places in first
	converted []pair        // the 16-bit gradients, and the wider matrices that replace them
	invalid   device.Tensor // one byte: 1 if a gradient of the pass is not finite
}

// matrix is a compressed gradient. Its factors are stored transposed, because the kernel makes rows
// orthonormal.
type matrix struct {
	grad             device.Tensor // [n m]
	p, q             device.Tensor // [r n], [r m]
	randomP, randomQ device.Tensor // random rows, which replace zero rows
	unsent           device.Tensor // [n m]: error feedback; zero Tensor without it
}

// pair is a gradient and the buffer that replaces it.
type pair struct{ grad, work device.Tensor }

func (f *factors) device() (kernels.Kernels, device.Stream) {
	d := f.first.Group.Device()
	return kernels.Of(d), d.Compute()
}

// compressed returns the shape of a gradient as a matrix, and the rank of its factors. The rank is
// 0 if the gradient is not compressed.
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

// plan says where each buffer for a bucket is within its allocation.
type plan struct {
	ps, qs, unsent pool
	at             []places // indexed by gradient
}

// places holds the places of a gradient's factors, and of a matrix of the gradient's size. A gradient
// that is not compressed has only p, a place in the same bucket as the factors P.
type places struct {
	p, q, unsent place
	compressed   bool
}

func (h *PowerSGD) plan(grads []device.Tensor) (l plan) {
	l.at = make([]places, len(grads))
	for i, g := range grads {
		if n, m, rank := h.compressed(g.Shape); rank > 0 {
			l.at[i] = places{l.ps.add(rank, n), l.qs.add(rank, m), l.unsent.add(n, m), true}
		} else {
			l.at[i].p = l.ps.add(g.Shape...)
		}
	}
	return l
}

// factors allocates the buffers for a bucket. They contain no matrices if no gradient of the bucket
// is compressed.
func (h *PowerSGD) factors(b reducer.GradBucket) (*factors, error) {
	l, f := h.plan(b.Grads), &factors{}
	if l.qs.size == 0 {
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
	p, q, spares := array(dt, l.ps.size), array(dt, l.qs.size), array(dt, max(l.ps.size, l.qs.size))
	f.invalid = array(device.Uint8, 1)
	var kept, work device.Tensor
	if !h.o.NoErrorFeedback {
		kept = array(dt, l.unsent.size)
	}
	if b.Flat.DType != dt {
		work = array(dt, l.unsent.size)
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
		at := l.at[i]
		if !at.compressed {
			f.rest = append(f.rest, pair{g, at.p.in(p)})
			continue
		}
		m := matrix{
			p: at.p.in(p), q: at.q.in(q), randomP: at.p.in(spares), randomQ: at.q.in(spares),
			grad: g.Reshape(at.unsent.shape...),
		}
		if !work.IsZero() {
			c := pair{m.grad, at.unsent.in(work)}
			f.converted, m.grad = append(f.converted, c), c.work
		}
		if !h.o.NoErrorFeedback {
			m.unsent = at.unsent.in(kept)
		}
		f.matrices = append(f.matrices, m)
		if err := h.resume(b.Group.Device(), b.Params[i].Name, m); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// part returns a bucket with the elements of flat, which the inner hook reduces in place of b. To that hook it
// looks like a bucket of one parameter.
func (h *PowerSGD) part(b reducer.GradBucket, name string, flat device.Tensor) reducer.GradBucket {
	b = hookBucket(b, name, flat, []reducer.Param{{Name: name, Shape: flat.Shape, DType: flat.DType}}, []device.Tensor{flat})
	b.After = nil
	return b
}
