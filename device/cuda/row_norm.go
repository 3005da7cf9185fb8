//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// rowNormArgs has the layout of the structure RowNorm in kernels/row_norm.cu.
type rowNormArgs struct {
	dst, sum, x, y, g, addend    uint64
	mean, variance, weight, bias uint64
	part, parts                  uint64
	rows, cols                   uint64
	centered                     uint64
	eps                          float64
	acc                          device.Accum
	dweight, dbias               uint64
	accWeight, accBias           device.Accum
}

// rowHeld is, for each version of the kernels, the maximum number of elements of a row per thread.
var rowHeld = [...]int{16, 24, 32}

// rowWarps is the maximum number of warps per block, as in kernels/row_norm.cu.
const rowWarps = 8

// rowsAtOnce is the number of rows that a block computes in parallel if a row has one warp.
const rowsAtOnce = 4

// rowBlocks is the number of blocks per multiprocessor in a forward pass.
const rowBlocks = 4

// The rows of a gradient are divided into parts, one per block. The division depends only on the shape,
// because it determines the order of additions.
const (
	rowParts    = 512 // the maximum number of parts
	rowsOfAPart = 16  // the minimum number of rows in a part
)

// fit sets a's sizes. It reports whether the kernels of kernels/row_norm.cu support the normalization:
// every sample must be one group of channels with one position, consist of whole packs, and be short
// enough.
func (a *rowNormArgs) fit(dt device.DType, z operand.NormSizes, p kernels.Norm) bool {
	a.rows, a.cols, a.centered, a.eps = uint64(z.N), uint64(z.C), uint64(flag(!p.Uncentered)), p.Eps
	return dt != device.Float64 && p.Groups == 1 && z.L == 1 && z.N > 0 && z.C > 0 && z.C%(packBytes/dt.Size()) == 0 && z.C <= rowHeld[len(rowHeld)-1]*warp*rowWarps &&
		packed(a.dst, a.sum, a.x, a.y, a.g, a.addend, a.weight, a.bias)
}

// blocks returns the grid for n blocks, and the version of the kernels. One warp computes a row if it can hold it. The
// threads of several warps hold the given number of elements each if that is enough for the row.
func (a *rowNormArgs) blocks(n, held int) (g grid, version int) {
	g = grid{n, 1, 1, warp, 1}
	if int(a.cols) > rowHeld[len(rowHeld)-1]*warp {
		g.threadsX = warp * min(ceil(int(a.cols), held*warp), rowWarps)
	}
	if g.threadsX == warp {
		g.threadsY = rowsAtOnce
	}
	for int(a.cols) > rowHeld[version]*g.threadsX {
		version++
	}
	return g, version
}

func (k *kernelSet) rowNormForward(st device.Stream, dt device.DType, a rowNormArgs) error {
	g, version := a.blocks(1, rowHeld[len(rowHeld)-1])
	g.x = min(ceil(int(a.rows), g.threadsY), k.d.props.sms*rowBlocks)
	var writes []span // an array that there is not has the address 0
	for _, at := range []uint64{a.dst, a.sum} {
		writes = append(writes, span{at, at + a.rows*a.cols*uint64(dt.Size())})
	}
	for _, at := range []uint64{a.mean, a.variance} {
		writes = append(writes, span{at, at + a.rows*uint64(device.Float32.Size())})
	}
	return k.launchEarly(k.d.stream(st), k.rowNorm[version][dt], g, unsafe.Pointer(&a), unsafe.Sizeof(a), nil, writes)
}

func (k *kernelSet) rowNormBackward(st device.Stream, dt device.DType, a rowNormArgs) error {
	if a.dst == 0 && a.dweight == 0 && a.dbias == 0 {
		return nil
	}
	s := k.d.stream(st)
	parts := min(ceil(int(a.rows), rowsOfAPart), rowParts, workspaceSize/(8*int(a.cols)))
	if a.dweight != 0 || a.dbias != 0 {
		work, err := s.workspace()
		if err != nil {
			return err
		}
		a.part, a.parts = uint64(work.Addr()), uint64(parts)
	}
	g, version := a.blocks(parts, rowHeld[0]) // so that registers suffice to load the next row ahead
	if err := k.launch(s, k.rowNormGrad[version][dt], g, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil || a.part == 0 {
		return err
	}
	return k.launch(s, k.rowNormFold[dt], grid{ceil(2*int(a.cols), warp), 1, 1, warp, 32}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}
