package data

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/goddp/goddp/device"
)

// Mix returns a data set with the samples of several sets, which have the same fields. An epoch has each sample of set i
// weights[i] times: all of them twice with the weight 2, half of them, which the seed selects, with 0.5. Shuffle of the
// loader mixes their order. The data set is [Labeled] if all sets are.
func Mix(sets []Dataset, weights []float64, seed uint64) (Dataset, error) {
	if len(sets) == 0 || len(sets) != len(weights) {
		return nil, fmt.Errorf("data: Mix of %d sets and %d weights, want at least one, and as many weights", len(sets), len(weights))
	}
	m := mix{sets: sets}
	isLabeled := true
	for i, set := range sets {
		if !(weights[i] >= 0) || math.IsInf(weights[i], 1) {
			return nil, fmt.Errorf("data: Mix: weight %d is %v, want a finite one of at least 0", i, weights[i])
		}
		if want, got := sets[0].Fields(), set.Fields(); !slices.EqualFunc(want, got, func(a, b Field) bool {
			return a.Name == b.Name && a.DType == b.DType && a.Shape.Equal(b.Shape)
		}) {
			return nil, fmt.Errorf("data: Mix: set %d has the fields %v, and set 0 has %v: want the same", i, got, want)
		}
		_, ok := set.(Labeled)
		isLabeled = isLabeled && ok
		order := rand.New(rand.NewPCG(seed, uint64(i))).Perm(set.Len())
		for n := range int(math.Round(weights[i] * float64(set.Len()))) {
			m.of = append(m.of, place{i, order[n%len(order)]})
		}
	}
	if isLabeled {
		return labeledMix{m}, nil
	}
	return m, nil
}

// mix has the samples of several sets.
type mix struct {
	sets []Dataset
	of   []place
}

// place is a sample of a set.
type place struct{ set, sample int }

func (m mix) Len() int        { return len(m.of) }
func (m mix) Fields() []Field { return m.sets[0].Fields() }

// FieldsOf returns the largest fields among those of the sets' samples.
func (m mix) FieldsOf(indices []int) []Field {
	var largest []Field
	for _, i := range indices {
		fields := fieldsOf(m.sets[m.of[i].set], []int{m.of[i].sample})
		if largest == nil {
			largest = slices.Clone(fields) // the set's own may be in use
			continue
		}
		for f := range fields {
			shape := slices.Clone(largest[f].Shape)
			for axis, n := range fields[f].Shape {
				shape[axis] = max(shape[axis], n)
			}
			largest[f].Shape = shape
		}
	}
	return largest
}

func (m mix) Read(indices []int, dst []device.Tensor) error {
	for row, i := range indices {
		one := make([]device.Tensor, len(dst))
		for f, t := range dst {
			shape := append(device.Shape{1}, t.Shape[1:]...)
			bytes := shape.Len() * t.DType.Size()
			one[f] = device.NewTensor(t.Buf.Slice(row*bytes, bytes), t.DType, shape...)
		}
		if err := m.sets[m.of[i].set].Read([]int{m.of[i].sample}, one); err != nil {
			return err
		}
	}
	return nil
}

// labeledMix is a mix of Labeled sets.
type labeledMix struct{ mix }

func (m labeledMix) Labels(i int) int { return m.sets[m.of[i].set].(Labeled).Labels(m.of[i].sample) }
