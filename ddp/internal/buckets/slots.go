package buckets

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/device"
)

// slotted is a hook that keeps what it needs of reduced gradients itself, such as the hook of package ddp/zero. Then
// buckets can share memory, which are the slots: in each pass a bucket takes a slot when its first gradient is written,
// and gives the slot back when it is reduced. A bucket whose gradients are more than twice its cap has its own memory.
type slotted interface {
	// Slots returns the number of slots that New allocates, or 0 for no slots. If a pass needs more at the same time, as
	// when a parameter is used at both ends of the model, the reducer allocates more.
	Slots() int
}

// slot is memory for the gradients of one bucket at a time.
type slot struct {
	buf   device.Buffer
	owner int // the last bucket that took it in this pass; none
}

const (
	own  = -1 // bucket.slot of a bucket with its own memory
	none = -1 // slot.owner of a slot that no bucket has taken
)

// slotCount returns the result of the hook's Slots, and whether it is positive.
func (r *Reducer) slotCount() (n int, isSlotted bool) {
	if h, ok := r.hook.(slotted); ok {
		n = h.Slots()
	}
	return n, n > 0
}

// addSlot allocates a slot.
func (r *Reducer) addSlot(l *layout, size int) error {
	buf, err := r.pg.Alloc(size)
	if err != nil {
		return fmt.Errorf("reducer: allocating memory for one bucket at a time: %w", err)
	}
	l.slots = append(l.slots, slot{buf, none})
	return nil
}

// Claim is called within a pass before a gradient is written for the first time. It gives the gradient's bucket a slot,
// whose last bucket the compute stream then has reduced.
func (r *Reducer) Claim(i int) {
	if len(r.slots) > 0 {
		r.early = errors.Join(r.early, r.claim(r.core.home[i]))
	}
}

// claim gives bucket i a slot, unless it has one in this pass: the one whose last bucket was launched first. The status,
// which is the only other reduction in r.works, is launched behind all claims.
func (r *Reducer) claim(i int) error {
	b := &r.buckets[i]
	if b.slot == own || r.slots[b.slot].owner == i {
		return nil
	}
	best := -1
	for k, s := range r.slots {
		if s.owner < len(r.works) && (best < 0 || s.owner < r.slots[best].owner) {
			best = k
		}
	}
	if best < 0 {
		if rec := r.capturing(); rec != nil {
			return rec.NotYet("the buckets have too few slots")
		}
		best = len(r.slots)
		if err := r.addSlot(&r.layout, r.slots[0].buf.Len()); err != nil {
			return err // the gradients are written over those of another bucket, and this rank's flag skips the step
		}
	} else if owner := r.slots[best].owner; owner != none {
		if err := r.join(r.pg.Context(), owner+1); err != nil {
			return err
		}
	}
	b.slot, r.slots[best].owner = best, i
	r.lie(&r.layout, i, r.slots[best].buf)
	return nil
}

// zeroUnused takes a slot for bucket i, if it shares memory, and zeroes its gradients that this pass does not use. It
// reports whether there are any.
func (r *Reducer) zeroUnused(i int) (found bool) {
	b := &r.buckets[i]
	if b.slot == own {
		return false
	}
	r.early = errors.Join(r.early, r.claim(i))
	for _, p := range b.params {
		if r.core.unused[p] {
			found = true
			r.early = errors.Join(r.early, r.pg.Device().Kernels().Fill(r.pg.Device().Compute(), r.grads[p], 0))
		}
	}
	return found
}
