package reducer

import (
	"cmp"
	"slices"

	"github.com/goddp/goddp/device"
)

// Assignment is one bucket as planned: which parameters, and the cap that
// closed it.
type Assignment struct {
	Params []int
	Cap    int // bytes
}

// Assign puts parameters into buckets by PyTorch's rule
// (compute_bucket_assignment_by_size): in the given order, one bucket per
// element type is open at a time; a parameter is added first, and when the
// bucket's bytes have then reached its cap, it is closed and its type moves on
// to the next cap, the last of which stays. So a bucket may exceed its cap by
// less than one parameter, and a parameter is never split. The buckets come
// in the order in which their last parameters do.
func Assign(params []Param, order []int, caps []int) []Assignment {
	type open struct {
		Assignment
		bytes int
		caps  []int // this type's own cursor
	}
	byType := map[device.DType]*open{}
	var types []device.DType
	var closed []Assignment
	for _, i := range order {
		p := params[i]
		b := byType[p.DType]
		if b == nil {
			b = &open{caps: caps}
			byType[p.DType] = b
			types = append(types, p.DType)
		}
		b.Params = append(b.Params, i)
		b.Cap = b.caps[0]
		if b.bytes += p.bytes(); b.bytes < b.caps[0] {
			continue
		}
		closed = append(closed, b.Assignment)
		if len(b.caps) > 1 {
			b.caps = b.caps[1:]
		}
		b.Assignment, b.bytes = Assignment{}, 0
	}
	for _, t := range types {
		if b := byType[t]; len(b.Params) > 0 {
			closed = append(closed, b.Assignment)
		}
	}
	place := make([]int, len(params))
	for at, i := range order {
		place[i] = at
	}
	slices.SortFunc(closed, func(a, b Assignment) int {
		return cmp.Compare(place[a.Params[len(a.Params)-1]], place[b.Params[len(b.Params)-1]])
	})
	return closed
}

// reversed is the order in which gradients are expected: the last registered
// parameter first.
func reversed(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = n - 1 - i
	}
	return order
}
