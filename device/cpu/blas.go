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

// product describes a matrix product of op(x) [m k] and op(y) [k n], with the lengths of the rows of x and y
// as they are stored, row-major.
type product struct {
	tx, ty   bool
	m, n, k  int
	ldx, ldy int
}

// open prepares the library for a device with the given number of threads.
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
		log.Warn("cpu: matrix products run in pure Go, several times slower than in OpenBLAS", "remedy", installHint(needsOpenBLAS), "cause", err)
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
