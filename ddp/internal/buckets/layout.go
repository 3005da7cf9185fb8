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
	slots    []slot          // the memory that buckets share; nil if each bucket has its own
}

// bucket is the memory of a bucket, and the assignment that says which parameters it holds.
type bucket struct {
	assignment
	name  string
	size  int           // the size of flat in bytes
	words int           // the number of words of the status in flat
	slot  int           // the index of the slot that the bucket was in last; own if it has its own memory
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
	shared, most := 0, 0 // the number of buckets in slots, and the size of the largest of them
	n, slotted := r.slotCount()
	for i, a := range plan {
		b := bucket{assignment: a, name: fmt.Sprintf("bucket %d", i), slot: own, bytes: r.sum(a)}
		if i == len(plan)-1 && !l.separate {
			b.words = r.status.len()
		}
		unit := r.pg.Size() * device.Align
		b.size = (r.end(a) + b.words*r.dtype(a).Size() + unit - 1) / unit * unit
		if slotted && b.bytes <= 2*a.cap {
			b.slot = shared % n
			shared, most = shared+1, max(most, b.size)
		}
		l.buckets = append(l.buckets, b)
	}
	for range min(n, shared) {
		if err := r.addSlot(&l, most); err != nil {
			return l, err
		}
	}
	for i := range l.buckets {
		b := &l.buckets[i]
		if b.slot != own {
			r.lie(&l, i, l.slots[b.slot].buf)
			continue
		}
		buf, err := r.pg.Alloc(b.size)
		if err != nil {
			return l, fmt.Errorf("reducer: allocating %s of %d parameters: %w", b.name, len(b.params), err)
		}
		r.lie(&l, i, buf)
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

// dtype returns the type of the gradients of the planned bucket a.
func (r *Reducer) dtype(a assignment) device.DType { return r.params[a.params[0]].DType }

// end returns the size in bytes of the gradients of the planned bucket a, each of which starts at a multiple of
// device.Align.
func (r *Reducer) end(a assignment) (end int) {
	for _, p := range a.params {
		end += device.AlignUp(sizeOf(r.params[p]))
	}
	return end
}

// lie sets the views of bucket i, and in l those of its gradients and of the status, if the bucket holds it, to views of
// buf.
func (r *Reducer) lie(l *layout, i int, buf device.Buffer) {
	b := &l.buckets[i]
	dt, end := r.dtype(b.assignment), 0
	b.flat = device.NewTensor(buf.Slice(0, b.size), dt, b.size/dt.Size())
	b.hookParams, b.hookGrads = nil, nil
	for _, p := range b.params {
		l.grads[p] = device.NewTensor(buf.Slice(end, sizeOf(r.params[p])), dt, r.params[p].Shape...)
		end += device.AlignUp(sizeOf(r.params[p]))
	}
	if b.words > 0 {
		l.words = device.NewTensor(buf.Slice(end, b.words*dt.Size()), dt, b.words)
	}
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
