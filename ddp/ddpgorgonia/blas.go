package ddpgorgonia

import (
	"fmt"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	G "gorgonia.org/gorgonia"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/kernels"
)

// UseBLAS makes Gorgonia and its tensors compute matrix products as dev does: with OpenBLAS, if
// that is found at run time, and with as many threads as the device has (see device/cpu). This affects the
// whole process, because Gorgonia has one BLAS for all machines. Call UseBLAS before any machine runs.
// It returns an error if the host cannot address dev's memory.
func UseBLAS(dev device.Device) error {
	probe, err := dev.Alloc(1)
	if err != nil {
		return err
	}
	defer dev.Free(probe)
	if probe.Host() == nil {
		return fmt.Errorf("ddpgorgonia: UseBLAS: the host cannot address the memory of %v, and Gorgonia computes on the CPU: set "+jobenv.DeviceVar+"=cpu", dev)
	}
	G.Use(products{dev: dev})
	return nil
}

// products computes matrix products on a device. It leaves all other operations to gonum: the speed of memory limits
// them, so another implementation would not be faster.
type products struct {
	gonum.Implementation
	dev device.Device
}

func (p products) Sgemm(ta, tb blas.Transpose, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	if !gemm(p.dev, ta, tb, m, n, k, float64(alpha), a, lda, b, ldb, float64(beta), c, ldc) {
		p.Implementation.Sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
	}
}

func (p products) Dgemm(ta, tb blas.Transpose, m, n, k int, alpha float64, a []float64, lda int, b []float64, ldb int, beta float64, c []float64, ldc int) {
	if !gemm(p.dev, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) {
		p.Implementation.Dgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
	}
}

// gemm computes c = alpha·op(a)·op(b) + beta·c on a device. It returns false, without a result,
// if the rows of an operand have gaps between them, as in a part of a matrix, or if the device
// fails.
func gemm[T float32 | float64](dev device.Device, ta, tb blas.Transpose, m, n, k int, alpha float64, a []T, lda int, b []T, ldb int, beta float64, c []T, ldc int) bool {
	x, ok := matrix(a, m, k, lda, ta)
	y, ok2 := matrix(b, k, n, ldb, tb)
	z, ok3 := matrix(c, m, n, ldc, blas.NoTrans)
	if !ok || !ok2 || !ok3 {
		return false
	}
	return kernels.Of(dev).MatMul(dev.Compute(), z, device.Accum{Alpha: alpha, Beta: beta}, x, ta != blas.NoTrans, y, tb != blas.NoTrans) == nil
}

// matrix returns the stored matrix of an operand of rows × cols; t says whether it is stored
// transposed. It returns false if the rows have gaps between them.
func matrix[T float32 | float64](data []T, rows, cols, stride int, t blas.Transpose) (device.Tensor, bool) {
	if t != blas.NoTrans {
		rows, cols = cols, rows
	}
	if stride != cols || len(data) < rows*cols {
		return device.Tensor{}, false
	}
	return device.HostTensor(data[:rows*cols], device.Invalid, rows, cols), true
}
