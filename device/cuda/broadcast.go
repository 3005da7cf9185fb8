//go:build cgo && linux

package cuda

import (
	"fmt"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// maxAxes is the maximum number of axes of a kernel's iteration space, after contiguous axes have
// been coalesced.
const maxAxes = 8

// binaryArgs has the layout of the structure Binary in kernels/broadcast.cu.
type binaryArgs struct {
	dst, x, y           uint64
	rows, cols          uint64
	xstep, ystep        int32
	op, wide            int32
	rank                uint64
	n, xstride, ystride [maxAxes]uint64
}

func (k *kernelSet) Binary(st device.Stream, op kernels.BinaryOp, dst, x, y device.Tensor) error {
	operands.Binary(op, dst, x, y)
	n := dst.Len()
	if n == 0 {
		return nil
	}
	space := operand.Space(dst.Shape, x.Shape, y.Shape)
	row, outer := space[0], space[1:]
	checkAxes(op.String(), outer)
	a := binaryArgs{
		dst: k.addr(dst), x: k.addr(x), y: k.addr(y), rows: uint64(n / row.N), cols: uint64(row.N),
		xstep: int32(row.X), ystep: int32(row.Y), op: int32(op), rank: uint64(len(outer)),
	}
	for i, ax := range outer {
		a.n[i], a.xstride[i], a.ystride[i] = uint64(ax.N), uint64(ax.X), uint64(ax.Y)
	}
	per := packBytes / dst.DType.Size()
	wide := a.dst%packBytes == 0 && (a.xstep == 0 || packed(a.x)) && (a.ystep == 0 || packed(a.y)) && (a.rows == 1 || row.N%per == 0)
	a.wide = flag(wide)
	cols := row.N
	if wide {
		cols = ceil(cols, per)
	}
	return k.launch(k.d.stream(st), k.binary[dst.DType], k.plane(int(a.rows), cols), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// plane returns a grid with a thread for each of rows × cols elements. A block has as many threads
// along a row as the row has elements for.
func (k *kernelSet) plane(rows, cols int) grid {
	g := grid{z: 1, threadsX: 1, threadsY: threads}
	for g.threadsX < threads && g.threadsX < cols {
		g.threadsX *= 2
		g.threadsY /= 2
	}
	most := k.d.props.sms * 64
	g.x = min(ceil(cols, g.threadsX), most)
	g.y = min(ceil(rows, g.threadsY), max(most/g.x, 1), 1<<16-1)
	return g
}

func checkAxes(op string, axes []operand.Axis) {
	if len(axes) > maxAxes {
		panic(fmt.Errorf("cuda: %s over %d axes after coalescing, want at most %d", op, len(axes), maxAxes))
	}
}
