package commhook

import (
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/arena"
)

// memory is what a hook keeps for each bucket. It is made when the bucket is first
// seen, and anew where another is in its place.
type memory[T any] struct {
	rebuilt bool
	kept    map[uintptr]kept[T] // by the bucket's address
}

type kept[T any] struct {
	group  *comm.ProcessGroup
	flat   device.Tensor
	params []reducer.Param
	of     T
}

// of is what is kept for b, or what make makes. Its memory is of the group's, which
// is freed when nothing refers to it any more: hooks have no Close.
func (m *memory[T]) of(b reducer.GradBucket, make func() (T, error)) (T, error) {
	if b.Rebuilt != m.rebuilt || m.kept == nil {
		m.rebuilt, m.kept = b.Rebuilt, map[uintptr]kept[T]{}
	}
	k, there := m.kept[b.Flat.Buf.Addr()]
	if there && k.is(b) {
		return k.of, nil
	}
	v, err := make()
	if err == nil {
		m.kept[b.Flat.Buf.Addr()] = kept[T]{b.Group, b.Flat, b.Params, v}
	}
	return v, err
}

// is tells whether k is b's.
func (k *kept[T]) is(b reducer.GradBucket) bool {
	return k.group == b.Group && k.flat.Len() == b.Flat.Len() && k.flat.DType == b.Flat.DType &&
		slices.EqualFunc(k.params, b.Params, func(x, y reducer.Param) bool { return x.Name == y.Name && x.Shape.Equal(y.Shape) })
}

// alloc is an array of zeros in the group's memory.
func alloc(b reducer.GradBucket, dt device.DType, n int) (device.Tensor, error) {
	buf, err := b.Group.Alloc(arena.AlignUp(n * dt.Size()))
	if err != nil {
		return device.Tensor{}, err
	}
	return device.NewTensor(buf, dt, n), nil
}

// pool allocates several arrays of one type as one: it first adds up what it is
// asked for, then cuts it from memory.
type pool struct{ size int }

// place is where an array lies in the pool: its first element.
type place struct {
	at    int
	shape device.Shape
}

// add makes room for an array, on Align bytes for every type.
func (p *pool) add(shape ...int) place {
	at := p.size
	p.size += (device.Shape(shape).Len() + device.Align - 1) / device.Align * device.Align
	return place{at, shape}
}

// in is the array itself.
func (p place) in(flat device.Tensor) device.Tensor {
	return flat.Range(p.at, p.at+p.shape.Len()).Reshape(p.shape...)
}
