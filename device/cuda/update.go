//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import "unsafe"

// maxParts is the maximum number of parameters that one kernel updates, MAX_PARTS in kernels/prelude.cu.
// The arguments of a kernel must fit in 4 KiB.
const maxParts = 48

// updates batches optimizer steps that differ only in their tensors, and launches one kernel for up to
// maxParts of them. A holds their common arguments, and P the tensors of one.
type updates[A comparable, P any] struct {
	k    *kernelSet
	s    *gpuStream
	f    C.uintptr_t
	args updateArgs[A, P]
}

// updateArgs has the layout of the kernels' parameter. Block b works on the last part that starts at
// block b or before.
type updateArgs[A comparable, P any] struct {
	common A
	count  int32 // the number of parts
	blocks uint32
	starts [maxParts]uint32
	parts  [maxParts]P
}

// add adds a step on n elements, computed by f with the given number of blocks. It first launches the
// pending steps if this one cannot be batched with them.
func (u *updates[A, P]) add(f C.uintptr_t, common A, part P, n, blocks int) error {
	if n == 0 {
		return nil
	}
	a := &u.args
	if a.count == maxParts || a.count > 0 && (f != u.f || common != a.common) {
		if err := u.launch(); err != nil {
			return err
		}
	}
	u.f, a.common = f, common
	a.starts[a.count], a.parts[a.count] = a.blocks, part
	a.count++
	a.blocks += uint32(blocks)
	return nil
}

// updateBlocks returns the number of blocks for an update of n elements. A thread has two packs of float32.
func (k *kernelSet) updateBlocks(n int) int { return min(ceil(n, 8*threads), k.d.props.sms*64) }

// launch launches the steps that were added since the last launch.
func (u *updates[A, P]) launch() error {
	a := &u.args
	if a.count == 0 {
		return nil
	}
	err := u.k.launch(u.s, u.f, grid{int(a.blocks), 1, 1, threads, 1}, unsafe.Pointer(a), unsafe.Sizeof(*a))
	a.count, a.blocks = 0, 0
	return err
}
