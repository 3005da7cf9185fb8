package buckets

import (
	"reflect"
	"testing"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// assign returns the expected buckets in the cases of PyTorch's ComputeBucketAssignmentTest and in a few
// more cases.
func TestAssign(t *testing.T) {
	f32 := func(n int) reducer.Param { return reducer.Param{Shape: device.Shape{n}, DType: device.Float32} }
	f64 := func(n int) reducer.Param { return reducer.Param{Shape: device.Shape{n}, DType: device.Float64} }
	alternating := func(n int) []reducer.Param {
		var ps []reducer.Param
		for range n / 2 {
			ps = append(ps, f32(50), f64(25))
		}
		return ps
	}
	four := []reducer.Param{f32(10), f32(10), f32(10), f32(10)}
	for _, c := range []struct {
		name   string
		params []reducer.Param
		order  []int // nil: that of the parameters
		caps   []int
		want   [][]int
		limits []int
	}{
		{"one cap, one type", four, nil, []int{80}, [][]int{{0, 1}, {2, 3}}, []int{80, 80}},
		{"several caps, one type", four, nil, []int{40, 80}, [][]int{{0}, {1, 2}, {3}}, []int{40, 80, 80}},
		{"one cap, two types", alternating(6), nil, []int{400}, [][]int{{0, 2}, {1, 3}, {4}, {5}}, []int{400, 400, 400, 400}},
		{"several caps, two types", alternating(6), nil, []int{200, 400}, [][]int{{0}, {1}, {2, 4}, {3, 5}}, []int{200, 200, 400, 400}},
		{"the last cap stays", alternating(10), nil, []int{200, 400}, [][]int{{0}, {1}, {2, 4}, {3, 5}, {6, 8}, {7, 9}}, []int{200, 200, 400, 400, 400, 400}},
		{"one that is too large rides with the rest", []reducer.Param{f32(5), f32(1000), f32(5)}, nil, []int{100}, [][]int{{0, 1}, {2}}, []int{100, 100}},
		{"by the last member, not by closing", []reducer.Param{f64(1), f32(10), f32(10)}, nil, []int{80}, [][]int{{0}, {1, 2}}, []int{80, 80}},
		{"in another order", []reducer.Param{f32(100), f32(100), f32(100), f32(100), f32(100)}, reversed(5), []int{400, 800}, [][]int{{4}, {3, 2}, {1, 0}}, []int{400, 800, 800}},
		{"a cap never reached", four, nil, []int{1000}, [][]int{{0, 1, 2, 3}}, []int{1000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			order := c.order
			for i := range c.params {
				if c.order == nil {
					order = append(order, i)
				}
			}
			var got [][]int
			var limits []int
			for _, a := range assign(c.params, order, c.caps) {
				got = append(got, a.params)
				limits = append(limits, a.cap)
			}
			if !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(limits, c.limits) {
				t.Errorf("got %v with caps %v, want %v with %v", got, limits, c.want, c.limits)
			}
		})
	}
}
