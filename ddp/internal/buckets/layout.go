package buckets

import (
	"fmt"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
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
	flat  device.Tensor // the gradients; then, in the last bucket, the status if it has no separate memory; then padding
	bytes int           // the size of the gradients in bytes, without padding

	hookParams []reducer.Param // GradBucket.Params; nil before the first call of the hook
	hookGrads  []device.Tensor // GradBucket.Grads; nil before the first call of the hook
}

// A bucket is large if its gradients have at least largeBucket bytes. A delay of some microseconds is
// negligible compared with the reduction of a large bucket. If the last bucket is large, the reducer
// reduces the status separately before the last bucket. The optimizer can then update the parameters of
// the other buckets during the last reduction. Large buckets other than the last get a head start: see
// reducer.GradBucket.Ready.
const largeBucket = 4 << 20

// sum returns the total size in bytes of the gradients of the planned bucket a.
func (r *Reducer) sum(a assignment) (bytes int) {
	for _, p := range a.params {
		bytes += sizeOf(r.params[p])
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
		buf, err := r.pg.Alloc(device.AlignUp(n * device.Float32.Size()))
		if err != nil {
			return l, fmt.Errorf("reducer: allocating the status of %d words: %w", n, err)
		}
		l.words = device.NewTensor(buf.Slice(0, n*device.Float32.Size()), device.Float32, n)
	}
	return l, nil
}

// layBucket allocates one bucket and sets the views of its gradients in l. The parameter words is the
// number of words of the status if the bucket also holds the status; layBucket then sets the view of the
// status in l. Otherwise words is 0.
func (r *Reducer) layBucket(l *layout, name string, a assignment, words int) (bucket, error) {
	b := bucket{assignment: a, name: name}
	dt := r.params[a.params[0]].DType
	offsets, end := make([]int, len(a.params)), 0
	for k, p := range a.params {
		offsets[k] = end
		b.bytes += sizeOf(r.params[p])
		end += device.AlignUp(sizeOf(r.params[p]))
	}
	unit := r.pg.Size() * device.Align
	size := (end + words*dt.Size() + unit - 1) / unit * unit
	buf, err := r.pg.Alloc(size)
	if err != nil {
		return b, fmt.Errorf("reducer: allocating %s of %d parameters: %w", b.name, len(a.params), err)
	}
	b.flat = device.NewTensor(buf, dt, size/dt.Size())
	if words > 0 {
		l.words = device.NewTensor(buf.Slice(end, words*dt.Size()), dt, words)
	}
	for k, p := range a.params {
		l.grads[p] = device.NewTensor(buf.Slice(offsets[k], sizeOf(r.params[p])), dt, r.params[p].Shape...)
	}
	return b, nil
}

// use makes l the layout in use.
func (r *Reducer) use(l layout) {
	r.layout = l
	r.status.words, r.isStale = l.words, false
	flags := l.words.Range(0, r.status.ranks)
	r.status.flags = device.NewTensor(flags.Buf, device.Uint8, flags.Bytes())
}

// members returns the parameters of each planned bucket.
func members(plan []assignment) [][]int {
	out := make([][]int, len(plan))
	for i, a := range plan {
		out[i] = a.params
	}
	return out
}

// describeBuckets describes the buckets in the order in which they are reduced.
func (r *Reducer) describeBuckets() []reducer.Bucket {
	out := make([]reducer.Bucket, len(r.buckets))
	for i, b := range r.buckets {
		out[i] = reducer.Bucket{Params: r.names(b.params), Bytes: b.bytes, Cap: b.cap, Padded: b.flat.Bytes()}
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
