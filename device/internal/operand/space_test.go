package operand

import (
	"reflect"
	"testing"

	"github.com/goddp/goddp/device"
)

func TestSpace(t *testing.T) {
	type S = device.Shape
	for _, c := range []struct {
		shape, x, y S
		want        []Axis
	}{
		{S{}, S{}, S{}, []Axis{{1, 1, 1}}},
		{S{1, 1}, S{1, 1}, S{}, []Axis{{1, 1, 1}}},
		{S{4, 5}, S{4, 5}, S{4, 5}, []Axis{{20, 1, 1}}},           // one run
		{S{4, 5}, S{4, 5}, S{}, []Axis{{20, 1, 0}}},               // a number
		{S{4, 5}, S{4, 5}, S{5}, []Axis{{5, 1, 1}, {4, 5, 0}}},    // a row for every row
		{S{4, 5}, S{4, 5}, S{4, 1}, []Axis{{5, 1, 0}, {4, 5, 1}}}, // a number for every row
		{S{4, 5}, S{5}, S{4, 1}, []Axis{{5, 1, 0}, {4, 0, 1}}},    // an outer product
		{S{2, 3, 4}, S{2, 3, 4}, S{3, 4}, []Axis{{12, 1, 1}, {2, 12, 0}}},
		{S{2, 3, 4}, S{2, 3, 4}, S{3, 1}, []Axis{{4, 1, 0}, {3, 4, 1}, {2, 12, 0}}},
		{S{2, 1, 4}, S{2, 1, 4}, S{2, 1, 4}, []Axis{{8, 1, 1}}},
		{S{2, 3, 4}, S{2, 1, 4}, S{3, 1}, []Axis{{4, 1, 0}, {3, 0, 1}, {2, 4, 0}}},
	} {
		if got := Space(c.shape, c.x, c.y); !reflect.DeepEqual(got, c.want) {
			t.Errorf("Space(%v, %v, %v) = %v, want %v", c.shape, c.x, c.y, got, c.want)
		}
	}
}

func TestReduction(t *testing.T) {
	type S = device.Shape
	for _, c := range []struct {
		dst, src S
		want     Reduction
	}{
		{S{}, S{4, 5}, Reduction{Terms: []Axis{{20, 1, 0}}, Width: 1, N: 20}},
		{S{5}, S{4, 5}, Reduction{Terms: []Axis{{4, 5, 0}}, Width: 5, N: 4}},
		{S{4, 1}, S{4, 5}, Reduction{Kept: []Axis{{4, 5, 1}}, Terms: []Axis{{5, 1, 0}}, Width: 1, N: 5}},
		{S{3, 1}, S{2, 3, 4}, Reduction{Kept: []Axis{{3, 4, 1}}, Terms: []Axis{{4, 1, 0}, {2, 12, 0}}, Width: 1, N: 8}},
		{S{2, 1, 4}, S{2, 3, 4}, Reduction{Kept: []Axis{{2, 12, 4}}, Terms: []Axis{{3, 4, 0}}, Width: 4, N: 3}},
	} {
		if got := NewReduction(c.dst, c.src); !reflect.DeepEqual(got, c.want) {
			t.Errorf("NewReduction(%v, %v) = %+v, want %+v", c.dst, c.src, got, c.want)
		}
	}
}
