//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// maxParts is the maximum number of parameters that one kernel updates, MAX_PARTS in kernels/prelude.cu.
// The arguments of a kernel must fit in 4 KiB.
const maxParts = 48

// updates batches optimizer steps that differ only in their tensors, and launches one kernel for up to
// maxParts of them. A is the type of their common arguments, and P of the tensors of one step.
type updates[A comparable, P any] struct {
	k    *kernelSet
	s    *gpuStream
	f    C.uintptr_t
	args updateArgs[A, P]
}

// updateArgs has the layout of the kernels' parameter. Block b works on the part with the largest starting block that
// is at most b.
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

// optimizerArgs has the layout of the first members of the structure Update in kernels/update.cu.
type optimizerArgs struct {
	skip, overflow, skips, overflows uint64
	at                               uint64
	numbers                          [11]float64
	flags                            [2]int32
}

// optimizerPart has the layout of the structure UpdatePart.
type optimizerPart struct {
	w, g, s uint64
	state   [3]uint64
	n       uint64
	wide, _ int32
}

// optimizer holds the kernels of an optimizer. own is without master weights. The others are for 16-bit parameters with
// master weights: master for gradients of the parameters' type, masterWide for gradients of Float32.
type optimizer struct{ own, master, masterWide perFloat }

func (k *kernelSet) SGD(st device.Stream, steps ...kernels.SGDStep) error {
	return update(k, st, &k.sgd, nil, steps, (*kernels.SGDStep).Update)
}

func (k *kernelSet) AdamW(st device.Stream, steps ...kernels.AdamWStep) error {
	return update(k, st, &k.adamW, &k.adamWNarrow, steps, (*kernels.AdamWStep).Update)
}

func (k *kernelSet) RMSProp(st device.Stream, steps ...kernels.RMSPropStep) error {
	return update(k, st, &k.rmsProp, nil, steps, (*kernels.RMSPropStep).Update)
}

// update makes steps by the kernels usual, or narrow where the state is narrower than what the rule updates.
func update[S any](k *kernelSet, st device.Stream, usual, narrow *optimizer, steps []S, of func(*S) kernels.Update) error {
	all := updates[optimizerArgs, optimizerPart]{k: k, s: k.d.stream(st)}
	for i := range steps {
		u := of(&steps[i])
		operand.Update(&u)
		a := optimizerArgs{at: k.optional(*u.At), numbers: u.Numbers, flags: [2]int32{flag(u.Flags[0]), flag(u.Flags[1])}}
		a.skip, a.skips = k.flags(*u.Skip)
		a.overflow, a.overflows = k.flags(*u.Overflow)
		n, dt := u.Param.Len(), u.Param.DType
		part := optimizerPart{w: k.addr(*u.Param), g: k.addr(*u.Grad), s: k.optional(*u.Master), n: uint64(n)}
		for i, t := range u.State {
			if t != nil {
				part.state[i] = k.addr(*t)
			}
		}
		part.wide = flag(packed(part.w, part.g, part.s, part.state[0], part.state[1], part.state[2]))
		versions := usual
		if u.Narrow != device.Invalid {
			versions = narrow
		}
		f := versions.own[dt]
		switch {
		case u.Master.IsZero():
		case u.Grad.DType == device.Float32:
			f = versions.masterWide[dt]
		default:
			f = versions.master[dt]
		}
		if err := all.add(f, a, part, n, k.updateBlocks(n)); err != nil {
			return err
		}
	}
	return all.launch()
}
