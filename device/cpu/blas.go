package cpu

import (
	"fmt"
	"log/slog"

	netlib "gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/goddp/goddp/device"
)

// BLAS names a library of matrix products.
type BLAS string

// The libraries of matrix products.
const (
	AutoBLAS BLAS = ""         // OpenBLAS if it is there, else gonum
	OpenBLAS BLAS = "openblas" // a shared library, opened at run time
	Gonum    BLAS = "gonum"    // pure Go
)

// blas accumulates matrix products: dst = alpha·op(x)·op(y) + beta·dst,
// without reading dst when beta is 0. No size is 0.
type blas interface {
	gemm32(p product, alpha float32, x, y []float32, beta float32, dst []float32)
	gemm64(p product, alpha float64, x, y []float64, beta float64, dst []float64)
}

// product is the form of a matrix product: op(x) [m k], op(y) [k n], and the
// row lengths of x and y as they are stored, row-major.
type product struct {
	tx, ty   bool
	m, n, k  int
	ldx, ldy int
}

// open gets the library ready for a device of so many threads.
func (b BLAS) open(threads int, log *slog.Logger) blas {
	switch b {
	case Gonum:
		return pureGo{}
	case AutoBLAS, OpenBLAS:
		lib, err := openBLAS(threads)
		switch {
		case err == nil:
			log.Debug("cpu: matrix products run in OpenBLAS", "library", lib, "threads", threads)
			return lib
		case b == OpenBLAS:
			panic(err)
		}
		log.Warn("cpu: matrix products run in pure Go, several times slower than in OpenBLAS", "remedy", installHint(), "cause", err)
		return pureGo{}
	}
	panic(fmt.Errorf("cpu: BLAS is %q, want %q, %q or %q", b, AutoBLAS, OpenBLAS, Gonum))
}

// pureGo is gonum's implementation.
type pureGo struct{ gonum.Implementation }

func (g pureGo) gemm32(p product, alpha float32, x, y []float32, beta float32, dst []float32) {
	p, x, y = withoutSkips(p, x, y)
	g.Sgemm(form(p.tx), form(p.ty), p.m, p.n, p.k, alpha, x, p.ldx, y, p.ldy, beta, dst, p.n)
}

func (g pureGo) gemm64(p product, alpha float64, x, y []float64, beta float64, dst []float64) {
	p, x, y = withoutSkips(p, x, y)
	g.Dgemm(form(p.tx), form(p.ty), p.m, p.n, p.k, alpha, x, p.ldx, y, p.ldy, beta, dst, p.n)
}

// withoutSkips is a product as gonum computes it by IEEE 754. Gonum skips the zeros
// of x, and with them what is not finite in y, in every form but x·yᵀ. A product
// with such a y is brought into that form, by copies of what has to be transposed.
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

// isFinite tells whether v holds neither a NaN nor an infinity.
func isFinite[T float](v []T) bool {
	t := device.HostTensor(v, device.Invalid)
	return !nonFinite(t.Buf.Host(), exponents[t.DType], signs[t.DType])
}

// transposed is the transpose of a matrix, rows of which begin ld elements apart.
func transposed[T float](v []T, rows, cols, ld int) []T {
	out := make([]T, rows*cols)
	for i := range rows {
		for j, e := range v[i*ld : i*ld+cols] {
			out[j*rows+i] = e
		}
	}
	return out
}

// form is how gonum says whether an operand is transposed.
func form(transposed bool) netlib.Transpose {
	if transposed {
		return netlib.Trans
	}
	return netlib.NoTrans
}
