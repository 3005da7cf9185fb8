package cpu

import (
	"fmt"
	"log/slog"

	netlib "gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/goddp/goddp/device"
)

// BLAS selects a library of matrix products.
type BLAS string

// These are the libraries of matrix products.
const (
	AutoBLAS BLAS = ""         // OpenBLAS if it is installed, else gonum
	OpenBLAS BLAS = "openblas" // a shared library, opened at run time
	Gonum    BLAS = "gonum"    // pure Go
)

// blas accumulates matrix products: dst = alpha·op(x)·op(y) + beta·dst. It does not read dst if beta is 0.
// All sizes are positive.
type blas interface {
	gemm32(p product, alpha float32, x, y []float32, beta float32, dst []float32)
	gemm64(p product, alpha float64, x, y []float64, beta float64, dst []float64)
}

// product describes a matrix product of op(x) [m k] and op(y) [k n], with the lengths of the rows of x, y and
// dst as they are stored, row-major.
type product struct {
	tx, ty   bool
	m, n, k  int
	ldx, ldy int
	ldd      int
}

// work returns the product's cost for k.each, in elements.
func (p product) work() int { return p.m * p.n * p.k / 4 }

// cells returns the number of cells of the result for so many threads: 1 if the product is small, or if the library is
// gonum, which has goroutines of its own and whose sums depend on the size of the result.
func (p product) cells(b blas, threads int) int {
	if _, isGonum := b.(pureGo); isGonum || p.work() <= 2*grain {
		return 1
	}
	return max(threads, 1)
}

// gemmCell computes cell i of a product. The cells are a grid whose cells are as square as possible, so that a thread
// reads little of x and y. Their sides are multiples of 32, except at the edges.
func gemmCell[T float](b blas, p product, i, cells int, alpha T, x, y []T, beta T, dst []T) {
	down := 1
	for d := 2; d <= cells; d++ {
		if cells%d == 0 && p.m/d+p.n/(cells/d) < p.m/down+p.n/(cells/down) {
			down = d
		}
	}
	part := func(size, i, of int) (from, to int) {
		units := (size + 31) / 32
		return units * i / of * 32, min(units*(i+1)/of*32, size)
	}
	across := cells / down
	top, bottom := part(p.m, i/across, down)
	left, right := part(p.n, i%across, across)
	if top >= bottom || left >= right {
		return
	}
	p.m, p.n = bottom-top, right-left
	dst = dst[top*p.ldd+left:][:(p.m-1)*p.ldd+p.n]
	x = operandPart(x, p.tx, top, p.m, p.k, p.ldx)
	y = operandPart(y, !p.ty, left, p.n, p.k, p.ldy)
	gemm(b, p, alpha, x, y, beta, dst)
}

// operandPart returns the memory of n rows of an operand [rows k] from the row at on, or of n columns of an operand [k columns].
func operandPart[T float](v []T, isColumns bool, at, n, k, ld int) []T {
	if isColumns {
		return v[at:][:(k-1)*ld+n]
	}
	return v[at*ld:][:(n-1)*ld+k]
}

// gemm is gemm32 or gemm64.
func gemm[T float](b blas, p product, alpha T, x, y []T, beta T, dst []T) {
	switch dst := any(dst).(type) {
	case []float32:
		b.gemm32(p, float32(alpha), any(x).([]float32), any(y).([]float32), float32(beta), dst)
	case []float64:
		b.gemm64(p, float64(alpha), any(x).([]float64), any(y).([]float64), float64(beta), dst)
	}
}

// open opens the library.
func (b BLAS) open(log *slog.Logger) blas {
	switch b {
	case Gonum:
		return pureGo{}
	case AutoBLAS, OpenBLAS:
		lib, err := openBLAS()
		switch {
		case err == nil:
			log.Debug("cpu: matrix products run in OpenBLAS", "library", lib)
			return lib
		case b == OpenBLAS:
			panic(err)
		}
		log.Warn("cpu: matrix products run in pure Go, several times slower than in OpenBLAS", "remedy", installHint(needsOpenBLAS), "cause", err)
		return pureGo{}
	}
	panic(fmt.Errorf("cpu: BLAS is %q, want %q, %q or %q", b, AutoBLAS, OpenBLAS, Gonum))
}

// pureGo is gonum's implementation.
type pureGo struct{ gonum.Implementation }

func (g pureGo) gemm32(p product, alpha float32, x, y []float32, beta float32, dst []float32) {
	p, x, y = withoutSkips(p, x, y)
	g.Sgemm(form(p.tx), form(p.ty), p.m, p.n, p.k, alpha, x, p.ldx, y, p.ldy, beta, dst, p.ldd)
}

func (g pureGo) gemm64(p product, alpha float64, x, y []float64, beta float64, dst []float64) {
	p, x, y = withoutSkips(p, x, y)
	g.Dgemm(form(p.tx), form(p.ty), p.m, p.n, p.k, alpha, x, p.ldx, y, p.ldy, beta, dst, p.ldd)
}

// withoutSkips computes a product with gonum as IEEE 754 requires. Except for x·yᵀ, gonum skips zeros of x,
// and so it ignores NaN and infinities of y. withoutSkips rewrites a product with such a y as x·yᵀ, on
// transposed copies.
func withoutSkips[T float](p product, x, y []T) (product, []T, []T) {
	if !p.tx && p.ty || isFinite(y) {
		return p, x, y
	}
	if p.tx {
		x, p.tx, p.ldx = transposed(x, p.k, p.m, p.ldx), false, p.k
	}
	if !p.ty {
		y, p.ty, p.ldy = transposed(y, p.k, p.n, p.ldy), true, p.k
	}
	return p, x, y
}

// isFinite reports whether v contains neither NaN nor infinity.
func isFinite[T float](v []T) bool {
	t := device.HostTensor(v, device.Invalid)
	return !nonFinite(t.Buf.Host(), exponents[t.DType], signs[t.DType])
}

// transposed returns the transpose of a matrix whose rows start ld elements apart.
func transposed[T float](v []T, rows, cols, ld int) []T {
	out := make([]T, rows*cols)
	for i := range rows {
		for j, e := range v[i*ld : i*ld+cols] {
			out[j*rows+i] = e
		}
	}
	return out
}

// form returns gonum's constant for an operand that is transposed or not.
func form(transposed bool) netlib.Transpose {
	if transposed {
		return netlib.Trans
	}
	return netlib.NoTrans
}
