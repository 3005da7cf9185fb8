package reducer

import (
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/arena"
)

// layout is the buckets' memory, and what lives where in it.
type layout struct {
	buckets []bucket
	grads   []device.Tensor // by parameter: views of the buckets
	words   device.Tensor   // the status
	apart   bool            // it is not in the last bucket
}

// bucket is a bucket as laid out.
type bucket struct {
	Assignment
	name  string
	flat  device.Tensor // the views, in the last bucket the status unless it is apart, the padding
	bytes int           // of the gradients alone

	params []Param         // for a hook, once it was called
	grads  []device.Tensor // likewise
}

// large is from how many bytes of gradients on some microseconds more for a bucket
// are little beside its reduction. With such a one at the end the status goes before
// it, by itself, so that the updates of all other buckets can hide behind the last
// reduction; and each one but the last gets a head start.
const large = 4 << 20

// headStart is an event behind what the compute stream was given so far, for a
// reduction of so many bytes; nil where it is not to have a head start.
//
// The event's time holds the compute stream of a GPU back for about three
// microseconds, in which a large reduction takes its multiprocessors. It would have to
// race for them with the next kernel otherwise. A rank where it lost, to a product with
// a block for every multiprocessor, would let the others' reductions spin for as long
// as that takes, in the place of a part of their own product. Behind the last one
// nothing is computed.
func headStart(pg *comm.ProcessGroup, bytes int, last bool) device.Event {
	if bytes < large || last || pg.Size() == 1 {
		return nil
	}
	return pg.Device().Compute().Record()
}

// sum is the bytes of the gradients of a bucket that is planned.
func (r *Reducer) sum(a Assignment) (bytes int) {
	for _, p := range a.Params {
		bytes += r.params[p].bytes()
	}
	return bytes
}

// lay allocates buckets as planned.
func (r *Reducer) lay(plan []Assignment) (l layout, err error) {
	l.grads = make([]device.Tensor, len(r.params))
	l.apart = r.hook != nil || len(plan) > 1 && r.sum(plan[len(plan)-1]) >= large
	for i, a := range plan {
		words := 0
		if i == len(plan)-1 && !l.apart {
			words = r.status.len()
		}
		b, err := r.layBucket(&l, fmt.Sprintf("bucket %d", i), a, words)
		if err != nil {
			return l, err
		}
		l.buckets = append(l.buckets, b)
	}
	if l.apart {
		n := r.status.len()
		buf, err := r.pg.Alloc(arena.AlignUp(n * device.Float32.Size()))
		if err != nil {
			return l, fmt.Errorf("reducer: status of %d words: %w", n, err)
		}
		l.words = device.NewTensor(buf.Slice(0, n*device.Float32.Size()), device.Float32, n)
	}
	return l, nil
}

// layBucket allocates one bucket, points its gradients into it, and so many
// words of status if there are any.
func (r *Reducer) layBucket(l *layout, name string, a Assignment, words int) (bucket, error) {
	b := bucket{Assignment: a, name: name}
	dt := r.params[a.Params[0]].DType
	offsets, end := make([]int, len(a.Params)), 0
	for k, p := range a.Params {
		offsets[k] = end
		b.bytes += r.params[p].bytes()
		end += arena.AlignUp(r.params[p].bytes())
	}
	unit := r.pg.Size() * device.Align
	size := (end + words*dt.Size() + unit - 1) / unit * unit
	buf, err := r.pg.Alloc(size)
	if err != nil {
		return b, fmt.Errorf("reducer: %s of %d parameters: %w", b.name, len(a.Params), err)
	}
	b.flat = device.NewTensor(buf, dt, size/dt.Size())
	if words > 0 {
		l.words = device.NewTensor(buf.Slice(end, words*dt.Size()), dt, words)
	}
	for k, p := range a.Params {
		l.grads[p] = device.NewTensor(buf.Slice(offsets[k], r.params[p].bytes()), dt, r.params[p].Shape...)
	}
	return b, nil
}

// use makes l the buckets in use.
func (r *Reducer) use(l layout) {
	r.layout = l
	r.status.words, r.status.stale = l.words, false
}

// members are the parameters of the buckets that are planned.
func members(plan []Assignment) [][]int {
	out := make([][]int, len(plan))
	for i, a := range plan {
		out[i] = a.Params
	}
	return out
}

// Bucket describes one bucket, in the order in which they are reduced.
type Bucket struct {
	Params []string
	Bytes  int // of the gradients
	Cap    int // in bytes
	Padded int // bytes that are reduced
}

// Buckets describes the buckets.
func (r *Reducer) Buckets() []Bucket {
	out := make([]Bucket, len(r.buckets))
	for i, b := range r.buckets {
		out[i] = Bucket{Params: r.names(b.Params), Bytes: b.bytes, Cap: b.Cap, Padded: b.flat.Bytes()}
	}
	return out
}

// names are the names of parameters.
func (r *Reducer) names(params []int) []string {
	out := make([]string, len(params))
	for i, p := range params {
		out[i] = r.params[p].Name
	}
	return out
}
