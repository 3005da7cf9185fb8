//go:build cgo && unix

package cpu

/*
// These are OpenBLAS's declarations, for its ordinary build with 32-bit integers.
typedef void (*sgemm_fn)(int order, int tx, int ty, int m, int n, int k, float alpha,
	const float *x, int ldx, const float *y, int ldy, float beta, float *dst, int ldd);
typedef void (*dgemm_fn)(int order, int tx, int ty, int m, int n, int k, double alpha,
	const double *x, int ldx, const double *y, int ldy, double beta, double *dst, int ldd);

enum { row_major = 101, no_trans = 111, trans = 112 };

// omp has OpenMP's functions if the library divides products by them. It then asks for the number of threads of the
// calling thread of the system, so each call sets it.
typedef struct {
	int (*max_threads)(void);
	void (*set_threads)(int);
} omp;

static int begin_product(omp o) {
	if (!o.max_threads) return 0;
	int before = o.max_threads();
	o.set_threads(1);
	return before;
}

static void end_product(omp o, int before) {
	if (before) o.set_threads(before);
}

static void call_sgemm(omp o, void *f, int tx, int ty, int m, int n, int k, float alpha,
	const float *x, int ldx, const float *y, int ldy, float beta, float *dst, int ldd) {
	int before = begin_product(o);
	((sgemm_fn)f)(row_major, tx, ty, m, n, k, alpha, x, ldx, y, ldy, beta, dst, ldd);
	end_product(o, before);
}

static void call_dgemm(omp o, void *f, int tx, int ty, int m, int n, int k, double alpha,
	const double *x, int ldx, const double *y, int ldy, double beta, double *dst, int ldd) {
	int before = begin_product(o);
	((dgemm_fn)f)(row_major, tx, ty, m, n, k, alpha, x, ldx, y, ldy, beta, dst, ldd);
	end_product(o, before);
}

static void call_set_threads(void *f, int n) { ((void (*)(int))f)(n); }

static const char *call_corename(void *f) { return ((const char *(*)(void))f)(); }
*/
import "C"

import (
	"fmt"
	"math"
	"os"
	"sync"
	"unsafe"

	features "golang.org/x/sys/cpu"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// loading serializes the loading of OpenBLAS, which reads the environment.
var loading sync.Mutex

// openBLAS loads OpenBLAS and lets each product run on the caller's thread, because OpenBLAS's own threads would wait for
// the next product actively, on the cores of other kernels. openBLAS does not try other CBLAS libraries: the reference
// library is slower than gonum, and the others set threads differently.
//
// On a processor that is newer than the library, OpenBLAS computes with its kernels for Prescott, which are five times
// slower than those for AVX-512. openBLAS then loads the library again, for the best kind of processor with the same
// instructions.
func openBLAS() (blas, error) {
	loading.Lock()
	defer loading.Unlock()
	o, err := loadOpenBLAS()
	if core := bestCore(); err == nil && o.core == "Prescott" && core != "" && os.Getenv(jobenv.CoreVar) == "" {
		o.lib.Close()
		os.Setenv(jobenv.CoreVar, core)
		defer os.Unsetenv(jobenv.CoreVar)
		o, err = loadOpenBLAS()
	}
	if err != nil {
		return nil, err
	}
	C.call_set_threads(o.setThreads, 1)
	return o, nil
}

// bestCore returns OpenBLAS's name for the best processor all of whose instructions this one has, "" if that is none
// with AVX2.
func bestCore() string {
	switch x := &features.X86; {
	case x.HasAVX512F && x.HasAVX512CD && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL:
		return "SkylakeX"
	case x.HasAVX2 && x.HasFMA:
		return "Haswell"
	}
	return ""
}

func loadOpenBLAS() (*openblas, error) {
	lib, err := dl.Open(dl.OpenBLAS(jobenv.OpenBLASVar))
	if err != nil {
		return nil, err
	}
	o := &openblas{lib: lib}
	var coreName unsafe.Pointer
	for name, f := range map[string]*unsafe.Pointer{
		"cblas_sgemm": &o.sgemm, "cblas_dgemm": &o.dgemm,
		"openblas_set_num_threads": &o.setThreads, "openblas_get_corename": &coreName,
	} {
		if *f, err = lib.Lookup(name); err != nil {
			return nil, err
		}
	}
	o.core = C.GoString(C.call_corename(coreName))
	if set, err := lib.Lookup("omp_set_num_threads"); err == nil {
		most, err := lib.Lookup("omp_get_max_threads")
		if err != nil {
			return nil, err
		}
		o.omp.max_threads, o.omp.set_threads = (*[0]byte)(most), (*[0]byte)(set)
	}
	return o, nil
}

// openblas calls the library. Its calls may run concurrently.
type openblas struct {
	lib          *dl.Library
	core         string // the processor for which the library's kernels are
	sgemm, dgemm unsafe.Pointer
	setThreads   unsafe.Pointer
	omp          C.omp
}

func (o *openblas) String() string { return fmt.Sprintf("%v for %s", o.lib, o.core) }

func (o *openblas) gemm32(p product, alpha float32, x, y []float32, beta float32, dst []float32) {
	if p.tooLarge() {
		pureGo{}.gemm32(p, alpha, x, y, beta, dst)
		return
	}
	C.call_sgemm(o.omp, o.sgemm, cblasForm(p.tx), cblasForm(p.ty), C.int(p.m), C.int(p.n), C.int(p.k),
		C.float(alpha), (*C.float)(&x[0]), C.int(p.ldx), (*C.float)(&y[0]), C.int(p.ldy), C.float(beta), (*C.float)(&dst[0]), C.int(p.ldd))
}

func (o *openblas) gemm64(p product, alpha float64, x, y []float64, beta float64, dst []float64) {
	if p.tooLarge() {
		pureGo{}.gemm64(p, alpha, x, y, beta, dst)
		return
	}
	C.call_dgemm(o.omp, o.dgemm, cblasForm(p.tx), cblasForm(p.ty), C.int(p.m), C.int(p.n), C.int(p.k),
		C.double(alpha), (*C.double)(&x[0]), C.int(p.ldx), (*C.double)(&y[0]), C.int(p.ldy), C.double(beta), (*C.double)(&dst[0]), C.int(p.ldd))
}

// tooLarge reports whether a size exceeds the range of OpenBLAS's integers.
func (p product) tooLarge() bool { return max(p.m, p.n, p.k, p.ldx, p.ldy, p.ldd) > math.MaxInt32 }

// cblasForm returns CBLAS's constant for an operand that is transposed or not.
func cblasForm(transposed bool) C.int {
	if transposed {
		return C.trans
	}
	return C.no_trans
}
