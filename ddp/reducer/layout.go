package reducer

import (
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/arena"
)

// layout is the memory of the buckets, and the places of the gradients and the status in it.
type layout struct {
	buckets  []bucket
	grads    []device.Tensor // by parameter: views of the buckets
	words    device.Tensor   // the status
	separate bool            // the status has its own memory; otherwise it is in the last bucket
}

// bucket is a bucket with its memory.
type bucket struct {
	assignment
	name  string
	flat  device.Tensor // the gradients, the status if this is the last bucket and it is not separate, and the padding
	bytes int           // the size of the gradients

	hookParams []Param         // GradBucket.Params; nil before the hook is called for the first time
	hookGrads  []device.Tensor // GradBucket.Grads; likewise
}

// largeBucket is the size in bytes of gradients from which a delay of some microseconds is negligible
// compared with the reduction. If the last bucket is large, the status is reduced separately before
// it, so that the updates of all other buckets run during the last reduction. Large buckets other than
// the last get a head start.
const largeBucket = 4 << 20

// headStart returns an event after everything that the compute stream was given so far, for a reduction
// of the given size. It returns nil if the reduction gets no head start.
//
// Recording an event with a time delays the compute stream of a GPU by about three microseconds. In
// this time a large reduction occupies its multiprocessors. Without the delay it would compete for them
// with the next kernel, such as a matrix product with a block for every multiprocessor. On a rank where
// it loses, the reduction starts only after that kernel, and the reductions on all other ranks spin
// until then, on multiprocessors that their own products need. After the last bucket nothing is
// computed, so it needs no head start.
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

// layBucket allocates one bucket and sets the views of its gradients in l, and that of the status if
// words is not 0.
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

// use puts the buckets of l into use.
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
	Params []string // the names of its parameters
	Bytes  int      // the size of the gradients
	Cap    int      // the size at which the bucket was closed, in bytes
	Padded int      // the size that is reduced, in bytes
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
