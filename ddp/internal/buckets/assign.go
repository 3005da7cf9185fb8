package buckets

import (
	"cmp"
	"slices"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// assignment is one planned bucket: its parameters, and its cap in bytes. The bucket takes no more
// parameters once its size has reached the cap.
type assignment struct {
	params []int
	cap    int
}

// assign puts parameters into buckets by PyTorch's rule (compute_bucket_assignment_by_size). It goes
// through the parameters in the order of the list `order`. For each element type one bucket is open at a time. assign
// adds a parameter to the open bucket of its type. If the size of the bucket then reaches the cap, assign
// closes the bucket, and the next bucket of this type has the next cap in caps. The last cap is used
// repeatedly. So a bucket may exceed its cap by less than one parameter, and a parameter is never split.
// assign sorts the buckets by the position of each bucket's last parameter in the list `order`.
func assign(params []reducer.Param, order []int, caps []int) []assignment {
	type open struct {
		assignment
		bytes int
		caps  []int // the caps of this bucket and of the following buckets of the same type
	}
	byType := map[device.DType]*open{}
	var types []device.DType
	var closed []assignment
	for _, i := range order {
		p := params[i]
		b := byType[p.DType]
		if b == nil {
			b = &open{caps: caps}
			byType[p.DType] = b
			types = append(types, p.DType)
		}
		b.params = append(b.params, i)
		b.cap = b.caps[0]
		if b.bytes += sizeOf(p); b.bytes < b.caps[0] {
			continue
		}
		closed = append(closed, b.assignment)
		if len(b.caps) > 1 {
			b.caps = b.caps[1:]
		}
		b.assignment, b.bytes = assignment{}, 0
	}
	for _, t := range types {
		if b := byType[t]; len(b.params) > 0 {
			closed = append(closed, b.assignment)
		}
	}
	place := make([]int, len(params))
	for at, i := range order {
		place[i] = at
	}
	slices.SortFunc(closed, func(a, b assignment) int {
		return cmp.Compare(place[a.params[len(a.params)-1]], place[b.params[len(b.params)-1]])
	})
	return closed
}

// Assign puts parameters without gradients into buckets of about cap bytes, by the rule for those that have gradients. It
// returns the indices of each bucket's parameters.
func Assign(params []reducer.Param, cap int) [][]int {
	return members(assign(params, reversed(len(params)), []int{cap}))
}

// reversed returns the reverse of the order of registration. The reducer expects gradients in this order
// until it knows rank 0's order.
func reversed(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = n - 1 - i
	}
	return order
}

// sizeOf returns the size of a parameter's gradient in bytes.
func sizeOf(p reducer.Param) int { return p.Shape.Len() * p.DType.Size() }
