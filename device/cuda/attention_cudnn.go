//go:build cgo && linux

package cuda

// #include "dnn.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// flash computes 16-bit attention with cuDNN, for the shapes that PrepareAttention has prepared.
type flash struct {
	k *kernelSet
	// ways maps shapes to plans. If the plan of a shape is nil, this package's kernels are used.
	ways map[flashShape]*flashWay
	// tried holds the plans of checks. Work that uses these plans may still be queued when a check has failed, so they
	// are freed only by close.
	tried []*flashWay
	// faults says why cuDNN is not used for a kind of shape. The error is nil if cuDNN is used.
	faults map[flashKind]error
	// anyOrder is Options.Nondeterministic.
	anyOrder bool
	// maxWork is the maximum scratch memory of a backward pass, in bytes. cuDNN's deterministic kernel writes the
	// gradients of all products of queries and keys to this memory. The nondeterministic kernel writes the gradient
	// of q in float32. If several heads of q share a head of keys, both kernels write the gradients of k and v for
	// each head of q. A pass that would need more memory splits the batch, or the heads of a batch.
	maxWork int
	maxWait time.Duration // the maximum wait for the stream when a kind of shape is checked
	passes  int           // the number of forward and backward passes computed by cuDNN
}

const (
	// maxFlashShapes is the maximum number of shapes with plans. A plan takes longer to build than a pass.
	maxFlashShapes = 64
	// flashWork is the default of maxWork: enough for 16 sequences of 1024 tokens and 12 heads, about 400
	// MB. With four times as much, a step of GPT-2 with 64 sequences is 0.8 % shorter.
	flashWork = 512 << 20
	// flashWait is the default of maxWait.
	flashWait = 30 * time.Second
)

// errBusy is the error of a check that the GPU did not finish in time.
var errBusy = errors.New("it could not be checked, because the GPU was busy")

// flashKind holds the properties on which cuDNN's choice of kernels depends.
type flashKind struct {
	dt       device.DType
	h, hk    int // the numbers of heads of q and of k
	t, s, d  int
	isCausal bool
}

// flashShape holds the properties on which a plan depends.
type flashShape struct {
	flashKind
	batches    int
	scale      float64
	q, k, v, o layout
}

// layout holds the distances between batches, heads and rows, in elements.
type layout [3]int

func layoutOf(h kernels.Heads) layout { return layout{h.BatchStride, h.HeadStride, h.RowStride} }

// flashWay holds the plans for a shape.
type flashWay struct {
	forward, backward *cudnnPlan
	batches, keyHeads int // what backward computes at once: some batches, or some heads of keys of one batch
}

// shape returns the key of the plans for a. It returns false if cuDNN has no kernel for a: if a has an arbitrary mask,
// a window, starts of documents or empty operands, or if its heads are not whole packs.
func (f *flash) shape(o kernels.Heads, a kernels.Attend) (flashShape, bool) {
	z := flashShape{
		flashKind{a.Q.Data.DType, a.Q.H, a.K.H, a.Q.T, a.K.T, a.Q.D, a.Causal},
		a.Q.B, a.Scale, layoutOf(a.Q), layoutOf(a.K), layoutOf(a.V), layoutOf(o),
	}
	serves := z.dt.Size() == 2 && a.Mask.IsZero() && a.Window == 0 && a.Starts.IsZero() && min(z.batches, z.h, z.hk, z.t, z.s, z.d) > 0 && z.t*z.s > 1 && inPacks(a.Q, a.K, a.V, o)
	return z, serves
}

// way returns the plans for a, or nil for goddp's kernels.
func (f *flash) way(o kernels.Heads, a kernels.Attend) *flashWay {
	if len(f.ways) == 0 {
		return nil
	}
	z, serves := f.shape(o, a)
	if !serves {
		return nil
	}
	return f.ways[z]
}

// forward computes attention with cuDNN. It reports false if goddp's kernels must compute it.
func (f *flash) forward(s *gpuStream, o kernels.Heads, lse device.Tensor, a kernels.Attend) (done bool, err error) {
	w := f.way(o, a)
	if w == nil {
		return false, nil
	}
	work, err := s.workspace()
	if err != nil {
		return false, err
	}
	f.passes++
	return true, w.forward.run(s, []uint64{f.k.addr(a.Q.Data), f.k.addr(a.K.Data), f.k.addr(a.V.Data), f.k.addr(o.Data), f.k.addr(lse)}, uint64(work.Addr()))
}

// backward computes the gradients of attention with cuDNN. It reports false if goddp's kernels must compute them:
// cuDNN cannot accumulate gradients or compute only some of them.
func (f *flash) backward(s *gpuStream, to kernels.AttentionGrads, g, o kernels.Heads, lse device.Tensor, a kernels.Attend) (done bool, err error) {
	w := f.way(o, a)
	if w == nil || to.AccQ != device.Store || to.AccK != device.Store || to.AccV != device.Store ||
		to.Q.Data.IsZero() || to.K.Data.IsZero() || to.V.Data.IsZero() ||
		layoutOf(to.Q) != layoutOf(a.Q) || layoutOf(to.K) != layoutOf(a.K) || layoutOf(to.V) != layoutOf(a.V) || layoutOf(g) != layoutOf(o) ||
		!inPacks(g, to.Q, to.K, to.V) {
		return false, nil
	}
	shared := a.Q.H / a.K.H // heads of q for each head of keys
	delta := device.Tensor{DType: device.Float32, Shape: device.Shape{w.batches, w.keyHeads * shared, a.Q.T}}
	work := device.Tensor{DType: device.Uint8, Shape: device.Shape{int(w.backward.c.workspace)}}
	sums := device.Tensor{DType: device.Float32, Shape: device.Shape{0}}
	if f.anyOrder {
		sums.Shape = append(delta.Shape, a.Q.D)
	}
	scratch, err := f.k.scratch(&delta, &sums, &work)
	if err != nil {
		var full *device.OutOfMemoryError
		if errors.As(err, &full) {
			err = nil // goddp's kernels need less memory
		}
		return false, err
	}
	defer f.k.freeScratch(s, scratch)
	f.passes++
	for i := 0; i < a.Q.B; i += w.batches {
		for j := 0; j < a.K.H; j += w.keyHeads {
			at := func(h kernels.Heads) uint64 {
				return f.k.addr(h.Data) + uint64(2*(i*h.BatchStride+j*h.H/a.K.H*h.HeadStride))
			}
			sum := f.k.addr(lse) + uint64(4*(i*a.Q.H+j*shared)*a.Q.T)
			arrays := []uint64{at(a.Q), at(a.K), at(a.V), at(o), at(g), sum, at(to.Q), at(to.K), at(to.V), f.k.addr(delta)}
			if f.anyOrder {
				arrays = append(arrays, f.k.addr(sums))
			}
			if err := w.backward.run(s, arrays, f.k.addr(work)); err != nil {
				return true, err
			}
		}
	}
	return true, nil
}

// prepare builds the plans for a shape at the first call. If that fails, or if the shape is first seen during a
// graph capture, goddp's kernels are used.
func (f *flash) prepare(s *gpuStream, o kernels.Heads, a kernels.Attend) error {
	z, serves := f.shape(o, a)
	if !serves || s != f.k.d.compute {
		return nil
	}
	if _, known := f.ways[z]; known || len(f.ways) == maxFlashShapes {
		return nil
	}
	captured, err := s.capturing()
	if err != nil || captured {
		return err
	}
	w, err := f.plan(s, o, a, z)
	if lost := f.k.d.Err(); lost != nil {
		return lost
	}
	if errors.Is(err, errBusy) {
		return nil // the next call tries again
	}
	if err != nil {
		f.k.d.log.Info("cuda: not using cuDNN for an attention", "device", f.k.d.name, "type", z.dt, "heads", z.h, "heads of keys", z.hk,
			"queries", z.t, "keys", z.s, "size", z.d, "causal", z.isCausal, "because", err)
	}
	f.ways[z] = w
	if len(f.ways) == maxFlashShapes {
		f.k.d.log.Info("cuda: not using cuDNN for attention of further shapes", "shapes", maxFlashShapes)
	}
	return nil
}

// plan returns the plans for a shape, or nil if cuDNN does not compute it. The error says why; it is nil if it
// was already returned for another shape of the same kind.
func (f *flash) plan(s *gpuStream, o kernels.Heads, a kernels.Attend, z flashShape) (*flashWay, error) {
	lib := f.k.cudnn()
	if lib == nil {
		return nil, nil
	}
	fault, known := f.faults[z.flashKind]
	switch {
	case known && fault != nil:
		return nil, nil
	case !known:
		if fault = f.check(s, lib, z.flashKind); errors.Is(fault, errBusy) {
			return nil, fault
		}
		f.faults[z.flashKind] = fault
	}
	if fault != nil {
		return nil, fault
	}
	return f.plans(lib, o, a)
}

// check compares cuDNN with goddp's kernels on one batch of random numbers, because some versions of cuDNN
// compute wrong gradients for some shapes. The error says why cuDNN is not used for a kind of shape. The check
// also loads cuDNN's kernels, which must not happen in a backward pass that overlaps collectives.
func (f *flash) check(s *gpuStream, lib *cudnn, z flashKind) error {
	const paddedUntil = 91500 // up to this version, cuDNN needs a padding mask for other numbers of keys
	if lib.version <= paddedUntil && z.s%128 != 0 {
		return fmt.Errorf("version %d of cuDNN computes it only for a multiple of 128 keys", lib.version)
	}
	queries, keys, rows := device.Shape{1, z.t, z.h, z.d}, device.Shape{1, z.s, z.hk, z.d}, device.Shape{1, z.h, z.t}
	array := func(shape device.Shape) device.Tensor { return device.Tensor{DType: z.dt, Shape: shape} }
	q, k, v, g := array(queries), array(keys), array(keys), array(queries)
	type results struct{ o, dq, dk, dv, lse device.Tensor }
	var want, got results
	parts := []*device.Tensor{&q, &k, &v, &g}
	for _, r := range []*results{&want, &got} {
		*r = results{array(queries), array(queries), array(keys), array(keys), device.Tensor{DType: device.Float32, Shape: rows}}
		parts = append(parts, &r.o, &r.dq, &r.dk, &r.dv, &r.lse)
	}
	scratch, err := f.k.scratch(parts...)
	if err != nil {
		return err
	}
	defer f.k.freeScratch(s, scratch)
	for i, x := range []device.Tensor{q, k, v, g} {
		if err := f.k.Uniform(s, x, -1, 1, uint64(i), 0); err != nil {
			return err
		}
	}
	heads := func(t device.Tensor) kernels.Heads { return kernels.RowsFirst(t, 0, t.Shape[2]) }
	a := kernels.Attend{Q: heads(q), K: heads(k), V: heads(v), Causal: z.isCausal, Scale: 1 / math.Sqrt(float64(z.d))}
	to := func(r results) kernels.AttentionGrads {
		return kernels.AttentionGrads{Q: heads(r.dq), K: heads(r.dk), V: heads(r.dv), AccQ: device.Store, AccK: device.Store, AccV: device.Store}
	}
	if err := errors.Join(f.k.ownAttention(s, heads(want.o), want.lse, a), f.k.ownAttentionGrad(s, to(want), heads(g), heads(want.o), want.lse, a)); err != nil {
		return err
	}
	w, err := f.plans(lib, heads(got.o), a)
	if err != nil {
		return err
	}
	f.tried = append(f.tried, w)
	shape, _ := f.shape(heads(got.o), a)
	alone := flash{k: f.k, anyOrder: f.anyOrder, ways: map[flashShape]*flashWay{shape: w}}
	if _, err = alone.forward(s, heads(got.o), got.lse, a); err == nil {
		_, err = alone.backward(s, to(got), heads(g), heads(got.o), got.lse, a)
	}
	for _, pair := range []struct {
		name      string
		want, got device.Tensor
	}{{"the result", want.o, got.o}, {"the gradient of q", want.dq, got.dq}, {"the gradient of k", want.dk, got.dk}, {"the gradient of v", want.dv, got.dv}} {
		if err == nil {
			err = f.compare(s, pair.name, pair.want, pair.got)
		}
	}
	return err
}

// compare returns an error if cuDNN's results differ from goddp's by more than the rounding of 16-bit types.
func (f *flash) compare(s *gpuStream, name string, want, got device.Tensor) error {
	ctx, cancel := context.WithTimeoutCause(f.k.d.life, f.maxWait, errBusy)
	defer cancel()
	bytes := [2][]byte{make([]byte, want.Bytes()), make([]byte, want.Bytes())}
	for i, t := range []device.Tensor{want, got} {
		if err := f.k.d.CopyOut(ctx, s, bytes[i], t.Buf); err != nil {
			return err
		}
	}
	from := kernels.FromBF16
	if want.DType == device.Float16 {
		from = kernels.FromF16
	}
	var size, off float64 // the sums of the squares of want, and of the differences
	for i := 0; i < len(bytes[0]); i += 2 {
		at := func(b []byte) float64 { return float64(from(uint16(b[i]) | uint16(b[i+1])<<8)) }
		x, y := at(bytes[0]), at(bytes[1])
		size += x * x
		off += (x - y) * (x - y)
	}
	n := float64(want.Len())
	size, off = math.Sqrt(size/n), math.Sqrt(off/n)
	if limit := size/32 + 1e-5; !(off <= limit) { // also if off is NaN
		return fmt.Errorf("cuDNN and goddp computed %s with a root mean square difference of %.3g, want at most %.3g", name, off, limit)
	}
	return nil
}

func (f *flash) close() {
	for _, w := range append(slices.Collect(maps.Values(f.ways)), f.tried...) {
		if w != nil {
			w.free()
		}
	}
}

func (w *flashWay) free() {
	w.forward.free()
	w.backward.free()
}

// plans returns the plans for a shape.
func (f *flash) plans(c *cudnn, o kernels.Heads, a kernels.Attend) (*flashWay, error) {
	w := &flashWay{batches: a.Q.B, keyHeads: a.K.H}
	perHead := 2 * a.Q.T * a.K.T // for a head of q
	if f.anyOrder {
		perHead = 4 * a.Q.T * a.Q.D
	}
	if a.Q.H > a.K.H {
		perHead += 2 * 2 * a.K.T * a.Q.D
	}
	fits := func() bool { return w.batches*w.keyHeads*(a.Q.H/a.K.H)*perHead <= f.maxWork }
	for w.batches > 1 && (!fits() || a.Q.B%w.batches != 0) {
		w.batches--
	}
	for w.keyHeads > 1 && (!fits() || a.K.H%w.keyHeads != 0) {
		w.keyHeads--
	}
	part, partO := a, o
	for _, h := range []*kernels.Heads{&part.Q, &part.K, &part.V, &partO} {
		h.B, h.H = w.batches, h.H/a.K.H*w.keyHeads
	}
	var err error
	if w.forward, err = c.flashForward(a, o).plan(); err != nil {
		return nil, err
	}
	if w.backward, err = c.flashBackward(part, partO, f.anyOrder).plan(); err != nil {
		w.forward.free()
		return nil, err
	}
	forward, backward := int(w.forward.c.workspace), int(w.backward.c.workspace)
	if most := f.maxWork + workspaceSize; forward > workspaceSize || backward > most {
		w.free()
		return nil, fmt.Errorf("cuDNN needs %d bytes of scratch memory for the forward and %d for the backward pass, but the limits are %d and %d", forward, backward, workspaceSize, most)
	}
	return w, nil
}

// flashForward describes attention in the form that cuDNN recognizes: operation by operation, in the order of
// NVIDIA's front end (node/scaled_dot_product_flash_attention.h of github.com/NVIDIA/cudnn-frontend). The arrays
// are q, k, v, o and lse.
func (c *cudnn) flashForward(a kernels.Attend, o kernels.Heads) *graph {
	g := &graph{c: c}
	q, kt, v, out := g.heads(a.Q), g.headsTransposed(a.K), g.heads(a.V), g.heads(o)
	lse := g.memory(cudnnFloat32, perRow(a), perRow(a).dense())

	s := g.masked(a, g.scores(a, q, kt, g.number(a.Scale)))
	top, sum := g.between(cudnnFloat32, lse.dims, lse.strides), g.between(cudnnFloat32, lse.dims, lse.strides)
	g.reduce(reduceMax, top, s)
	e := g.apply(pointwiseExp, g.apply(pointwiseSub, s, top))
	g.reduce(reduceAdd, sum, e)
	g.pointwise(pointwiseAdd, cudnnFloat32, lse, top, g.apply(pointwiseLog, sum))
	p := g.between(cudnnType(a.Q.Data.DType), s.dims, s.strides)
	g.pointwise(pointwiseDiv, cudnnFloat32, p, e, sum)
	g.multiply(out, p, v)
	return g
}

// flashBackward describes the gradients of attention in the same way. The arrays are q, k, v, o, the gradient of
// o, lse, the gradients of q, k and v, and a number for each query, which is scratch memory. Each gradient has
// the layout of its operand. Storing the product for the gradient of q directly selects cuDNN's deterministic
// kernel. With anyOrder the product goes through a float32 scratch array, to which cuDNN's nondeterministic
// kernel adds.
func (c *cudnn) flashBackward(a kernels.Attend, o kernels.Heads, anyOrder bool) *graph {
	g := &graph{c: c}
	q, kt, vt, out, grad := g.heads(a.Q), g.headsTransposed(a.K), g.headsTransposed(a.V), g.heads(o), g.heads(o)
	lse := g.memory(cudnnFloat32, perRow(a), perRow(a).dense())
	dq, dk, dv := g.heads(a.Q), g.heads(a.K), g.heads(a.V)
	delta := g.memory(cudnnFloat32, lse.dims, lse.strides)
	scale := g.number(a.Scale)

	// delta = the sums of the rows of grad·o
	strides := out.dims.dense()
	strides[2] = out.dims[1] * out.dims[3] // as in NVIDIA's front end
	products, sum := g.between(cudnnFloat32, out.dims, strides), g.between(cudnnFloat32, lse.dims, lse.strides)
	g.pointwise(pointwiseMul, cudnnFloat32, products, grad, out)
	g.reduce(reduceAdd, sum, products)
	g.pointwise(pointwiseMul, cudnnFloat32, delta, sum, g.number(1))

	// p = the probabilities, dv = pᵀ·grad
	p := g.apply(pointwiseExp, g.masked(a, g.apply(pointwiseSub, g.scores(a, q, kt, scale), lse)))
	g.overQueries(dv, p, grad)

	// ds = the gradients of the products of queries and keys, dk = dsᵀ·q, dq = ds·k
	dp := g.between(cudnnFloat32, p.dims, p.strides)
	g.multiply(dp, grad, vt)
	ds := g.apply(pointwiseMul, g.apply(pointwiseMul, g.apply(pointwiseSub, dp, delta), p), scale)
	g.overQueries(dk, ds, q)
	k := g.between(cudnnType(a.K.Data.DType), kt.dims.transposed(), kt.strides.transposed())
	g.reshape(k, kt)
	if !anyOrder {
		g.multiply(dq, ds, k)
		return g
	}
	sums := g.memory(cudnnFloat32, dq.dims, dq.dims.dense())
	g.multiply(sums, ds, k)
	g.pointwise(pointwiseIdentity, cudnnFloat32, dq, sums)
	return g
}

// heads adds h to the graph as an array.
func (g *graph) heads(h kernels.Heads) array {
	return g.memory(cudnnType(h.Data.DType), sizesOf(h), stridesOf(h))
}

// headsTransposed adds h to the graph as an array with rows and columns exchanged.
func (g *graph) headsTransposed(h kernels.Heads) array {
	return g.memory(cudnnType(h.Data.DType), sizesOf(h).transposed(), stridesOf(h).transposed())
}

func sizesOf(h kernels.Heads) dims4 { return dims4{int64(h.B), int64(h.H), int64(h.T), int64(h.D)} }
func stridesOf(h kernels.Heads) dims4 {
	return dims4{int64(h.BatchStride), int64(h.HeadStride), int64(h.RowStride), 1}
}

// perRow returns the dimensions of an array with one number for each query.
func perRow(a kernels.Attend) dims4 { return dims4{int64(a.Q.B), int64(a.Q.H), int64(a.Q.T), 1} }

// scores adds the scaled products of queries and keys to the graph.
func (g *graph) scores(a kernels.Attend, q, kt, scale array) array {
	dims := dims4{int64(a.Q.B), int64(a.Q.H), int64(a.Q.T), int64(a.K.T)}
	s := g.between(cudnnFloat32, dims, dims.dense())
	g.multiply(s, q, kt)
	return g.apply(pointwiseMul, s, scale)
}

// masked returns x. If a is causal, it adds an operation to the graph that replaces elements above the diagonal by -Inf.
func (g *graph) masked(a kernels.Attend, x array) array {
	if !a.Causal {
		return x
	}
	row, col := g.between(cudnnInt32, x.dims, x.strides), g.between(cudnnInt32, x.dims, x.strides)
	allowed := g.between(cudnnBool, x.dims, x.strides)
	g.index(2, row, x)
	g.index(3, col, x)
	g.pointwise(pointwiseGreaterEqual, cudnnBool, allowed, row, col)
	return g.apply(pointwiseSelect, x, g.number(math.Inf(-1)), allowed)
}

// overQueries adds the operation to = xᵀ·y to the graph; `to` is rounded to 16 bits. If several heads of x share a head
// of `to`, their products are summed.
func (g *graph) overQueries(to, x, y array) {
	xt := g.between(to.dt, x.dims.transposed(), x.strides.transposed())
	g.reshape(xt, x)
	if to.dims[1] == x.dims[1] {
		g.multiply(to, xt, y)
		return
	}
	all := dims4{to.dims[0], x.dims[1], to.dims[2], to.dims[3]}
	each := g.between(to.dt, all, all.dense())
	g.multiply(each, xt, y)
	g.reduce(reduceAdd, to, each)
}
