package commhook

import (
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// memory holds a hook's data for each bucket. The data is made when the hook first gets the bucket. If the buckets
// are rebuilt, it is made again.
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

// of returns the data for b. If there is none, it calls the function make. Memory that make allocates belongs
// to the group and is freed when nothing refers to it, because hooks have no Close.
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

// is reports whether k was made for b.
func (k *kept[T]) is(b reducer.GradBucket) bool {
	return k.group == b.Group && k.flat.Len() == b.Flat.Len() && k.flat.DType == b.Flat.DType &&
		slices.EqualFunc(k.params, b.Params, func(x, y reducer.Param) bool { return x.Name == y.Name && x.Shape.Equal(y.Shape) })
}

// alloc returns an array of zeros in the group's memory.
func alloc(b reducer.GradBucket, dt device.DType, n int) (device.Tensor, error) {
	buf, err := b.Group.Alloc(device.AlignUp(n * dt.Size()))
	if err != nil {
		return device.Tensor{}, err
	}
	return device.NewTensor(buf, dt, n), nil
}

// pool puts several arrays of one type into one allocation. The caller first calls add for all arrays, then
// allocates size elements, then gets each array by place.in.
type pool struct{ size int }

// place is the place of an array in a pool; at is its first element.
type place struct {
	at    int
	shape device.Shape
}

// add reserves an array. Its offset is a multiple of Align elements, so that it is aligned for
// every type.
func (p *pool) add(shape ...int) place {
	at := p.size
	p.size += (device.Shape(shape).Len() + device.Align - 1) / device.Align * device.Align
	return place{at, shape}
}

// in returns the array at this place of flat.
func (p place) in(flat device.Tensor) device.Tensor {
	return flat.Range(p.at, p.at+p.shape.Len()).Reshape(p.shape...)
}
