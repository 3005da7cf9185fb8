// Package blobs generates a data set to classify: random points around a center for each class.
package blobs

import (
	"math/rand/v2"

	"gorgonia.org/tensor"
)

// Features and Classes are the sizes of a sample and of its target.
const (
	Features = 256
	Classes  = 10
)

// Batch fills x [rows Features] with the samples [from, to), and y [rows Classes] with weight in the column
// of each sample's class. All other elements become zero. A sample is a function of its number alone.
func Batch(x, y *tensor.Dense, from, to int, weight float64) {
	x.Zero()
	y.Zero()
	for i := from; i < to; i++ {
		class := i % Classes
		center, noise := rand.New(rand.NewPCG(1, uint64(class))), rand.New(rand.NewPCG(2, uint64(i)))
		for j := range Features {
			set(x, (i-from)*Features+j, 0.1*center.NormFloat64()+noise.NormFloat64())
		}
		set(y, (i-from)*Classes+class, weight)
	}
}

// Matrix returns rows × cols normal random numbers around zero, the same for equal seeds.
func Matrix(dt tensor.Dtype, seed uint64, rows, cols int, std float64) *tensor.Dense {
	d, rng := tensor.New(tensor.Of(dt), tensor.WithShape(rows, cols)), rand.New(rand.NewPCG(3, seed))
	for i := range rows * cols {
		set(d, i, std*rng.NormFloat64())
	}
	return d
}

func set(d *tensor.Dense, i int, v float64) {
	if d.Dtype() == tensor.Float32 {
		d.Float32s()[i] = float32(v)
	} else {
		d.Float64s()[i] = v
	}
}
