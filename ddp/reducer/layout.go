package reducer

import (
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/arena"
)

// layout is the memory of the buckets, with views of this memory for the gradients and the status.
type layout struct {
	buckets  []bucket
	grads    []device.Tensor // by parameter: its gradient, a view of a bucket
	words    device.Tensor   // the words of the status
	separate bool            // the status has its own memory; otherwise it is in the last bucket
}

// bucket is the memory of a bucket, and the assignment that says which parameters it holds.
type bucket struct {
	assignment
	name  string
	flat  device.Tensor // the gradients, the status (only in the last bucket, and unless it is separate), and padding
	bytes int           // the size of the gradients in bytes, without padding

	hookParams []Param         // GradBucket.Params; nil before the first call of the hook
	hookGrads  []device.Tensor // GradBucket.Grads; nil before the first call of the hook
}

// largeBucket is the size in bytes of gradients from which a delay of some microseconds is negligible
// compared with the time of the reduction. If the last bucket is at least this large, the status is
// reduced separately before the last bucket, so that the optimizer's updates of all other buckets run
// during the last reduction. Any other bucket that is at least this large gets a head start: see
// headStart.
const largeBucket = 4 << 20

// headStart records and returns an event with a time on the compute stream, for a reduction of `bytes`
// bytes. It returns nil if the reduction gets no head start. last says that the reduction is the last one
// of the pass.
//
// Recording an event with a time delays the compute stream of a GPU by about three microseconds. In
// this time a large reduction occupies its multiprocessors. Without the delay, the reduction competes
// for multiprocessors with the next kernel, such as a matrix product with a block for every
// multiprocessor. On a rank where the kernel wins, the reduction starts only after the kernel. Until then
// the reductions on all other ranks spin, and occupy multiprocessors that kernels on those ranks need.
// The last reduction needs no head start, because the backward pass has no kernels after it.
func headStart(pg *comm.ProcessGroup, bytes int, last bool) device.Event {
	if bytes < largeBucket || last || pg.Size() == 1 {
		return nil
	}
	return pg.Device().Compute().Record()
}

// sum returns the size in bytes of the gradients of a planned bucket.
func (r *Reducer) sum(a assignment) (bytes int) {
	for _, p := range a.params {
		bytes += r.params[p].bytes()
	}
	return bytes
}

// lay allocates the planned buckets.
func (r *Reducer) lay(plan []assignment) (l layout, err error) {
	l.grads = make([]device.Tensor, len(r.params))
	l.separate = r.hook != nil || len(plan) > 1 && r.sum(plan[len(plan)-1]) >= largeBucket
	for i, a := range plan {
		words := 0
		if i == len(plan)-1 && !l.separate {
			words = r.status.len()
		}
		b, err := r.layBucket(&l, fmt.Sprintf("bucket %d", i), a, words)
		if err != nil {
			return l, err
		}
		l.buckets = append(l.buckets, b)
	}
	if l.separate {
		n := r.status.len()
		buf, err := r.pg.Alloc(arena.AlignUp(n * device.Float32.Size()))
		if err != nil {
			return l, fmt.Errorf("reducer: status of %d words: %w", n, err)
		}
		l.words = device.NewTensor(buf.Slice(0, n*device.Float32.Size()), device.Float32, n)
	}
	return l, nil
}

// layBucket allocates one bucket and sets the views of its gradients in l. If words is not 0, the bucket
// also holds the status, of `words` words, and layBucket sets the view of the status in l.
func (r *Reducer) layBucket(l *layout, name string, a assignment, words int) (bucket, error) {
	b := bucket{assignment: a, name: name}
	dt := r.params[a.params[0]].DType
	offsets, end := make([]int, len(a.params)), 0
	for k, p := range a.params {
		offsets[k] = end
		b.bytes += r.params[p].bytes()
		end += arena.AlignUp(r.params[p].bytes())
	}
	unit := r.pg.Size() * device.Align
	size := (end + words*dt.Size() + unit - 1) / unit * unit
	buf, err := r.pg.Alloc(size)
	if err != nil {
		return b, fmt.Errorf("reducer: %s of %d parameters: %w", b.name, len(a.params), err)
	}
	b.flat = device.NewTensor(buf, dt, size/dt.Size())
	if words > 0 {
		l.words = device.NewTensor(buf.Slice(end, words*dt.Size()), dt, words)
	}
	for k, p := range a.params {
		l.grads[p] = device.NewTensor(buf.Slice(offsets[k], r.params[p].bytes()), dt, r.params[p].Shape...)
	}
	return b, nil
}

// use makes l the layout in use.
func (r *Reducer) use(l layout) {
	r.layout = l
	r.status.words, r.status.isStale = l.words, false
}

// members returns the parameters of each planned bucket.
func members(plan []assignment) [][]int {
	out := make([][]int, len(plan))
	for i, a := range plan {
		out[i] = a.params
	}
	return out
}

// Bucket describes one bucket.
type Bucket struct {
	Params []string // the names of the bucket's parameters
	Bytes  int      // the size of the gradients in bytes
	Cap    int      // the limit in bytes: the bucket took no more parameters once its size had reached Cap
	Padded int      // the size of the bucket in bytes, with padding
}

// describeBuckets describes the buckets in the order in which they are reduced.
func (r *Reducer) describeBuckets() []Bucket {
	out := make([]Bucket, len(r.buckets))
	for i, b := range r.buckets {
		out[i] = Bucket{Params: r.names(b.params), Bytes: b.bytes, Cap: b.cap, Padded: b.flat.Bytes()}
	}
	return out
}

// names returns the names of parameters.
func (r *Reducer) names(params []int) []string {
	out := make([]string, len(params))
	for i, p := range params {
		out[i] = r.params[p].Name
	}
	return out
}
