package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
)

func checkOrthonormalize(r *rig) {
	shapes := []device.Shape{{0, 5}, {1, 1}, {1, 7}, {2, 3}, {8, 8}, {4, 257}, {3, 5000}, {16, 1000}}
	if r.quick {
		shapes = append(shapes[:6], device.Shape{3, 1100})
	}
	each(r, shapes, func(shape device.Shape) {
		rows, n := shape[0], shape[1]
		r.orthonormal("rows of any length", r.random(-1, 1, rows, n), r.random(-1, 1, rows, n), 0)
		if rows < 2 || rows == n {
			return
		}
		row := func(a array, i int) []float64 { return a.v[i*n : (i+1)*n] }
		x := r.random(-1, 1, rows, n)
		for i := range row(x, 1) {
			row(x, 1)[i] = -2 * row(x, 0)[i]
		}
		r.orthonormal("a row that depends on another", x, r.random(-1, 1, rows, n), 0)
		clear(row(x, 1))
		r.orthonormal("a row of zeros", x, r.random(-1, 1, rows, n), 0)
		r.orthonormal("a row of zeros and no spare", x, newArray(rows, n), 1)
		twin := r.random(-1, 1, rows, n)
		copy(row(twin, 1), row(x, 0))
		r.orthonormal("a row of zeros and a spare that depends on another", x, twin, 1)
		for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
			row(x, rows-1)[n/2] = bad
			r.orthonormal(fmt.Sprintf("a row with %v", bad), x, r.random(-1, 1, rows, n), 0)
		}
		tiny := r.random(-1e-25, 1e-25, rows, n) // Float32 cannot represent the squares of such numbers
		r.orthonormal("small rows", tiny, r.random(-1, 1, rows, n), 0)
	})
}

// orthonormal checks an Orthonormalize that makes the given number of rows zero. It checks the
// products of the rows and the rows themselves. The rows have the larger tolerance, because an
// ill-conditioned reference amplifies errors in them.
func (r *rig) orthonormal(label string, x, substitute array, zeros int) {
	label = "Orthonormalize, " + label
	rows, n := x.shape[0], x.shape[1]
	want := value{array{x.shape, gramSchmidt(x, substitute)}, slices.Repeat([]float64{1}, len(x.v)), 1024}
	ps := r.put(substitute)
	r.from(label, x, want, func(dst device.Tensor) error { return r.k.Orthonormalize(r.s, dst, ps.Tensor) })
	dst := r.put(x)
	r.ok(label, r.k.Orthonormalize(r.s, dst.Tensor, ps.Tensor))
	got := decode(r.dt, r.read(label, dst))
	for i := range rows {
		for j := range i + 1 {
			d := inner(got[i*n:(i+1)*n], got[j*n:(j+1)*n])
			if i == j && d == 0 && zeros > 0 {
				zeros--
				continue
			}
			if i == j {
				d--
			}
			if !(math.Abs(d) <= 16*epsilon(r.dt)+float64(n)*epsilon(device.Float64)) { // the reference's inner product rounds too
				r.fail("%s %v: the product of the rows %d and %d is off by %v", label, dst.Tensor, i, j, d)
			}
		}
	}
	if zeros != 0 {
		r.fail("%s %v: there are rows of zeros missing: %d", label, dst.Tensor, zeros)
	}
}

// gramSchmidt computes what package device specifies for Orthonormalize.
func gramSchmidt(x, substitute array) []float64 {
	rows, n := x.shape[0], x.shape[1]
	var basis [][]float64
	for i := range rows {
		var got []float64
		for _, from := range [][]float64{x.v, substitute.v} {
			row := slices.Clone(from[i*n : (i+1)*n])
			whole := inner(row, row)
			for range 2 {
				for _, b := range basis {
					d := inner(row, b)
					for k := range row {
						row[k] -= d * b[k]
					}
				}
			}
			left := inner(row, row)
			if left > 0x1p-28*whole {
				got = row
				for k := range row {
					row[k] /= math.Sqrt(left)
				}
				break
			}
		}
		if got == nil {
			got = make([]float64, n)
		}
		basis = append(basis, got)
	}
	return slices.Concat(basis...)
}

func inner(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}
