package optim

import (
	"errors"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// batchSize is the maximum size in bytes of the gradients of a batch of several updates. A kernel for
// this many gradients takes about as long as its launch.
const batchSize = 4 << 20

// batch collects updates of several parameters, so that a device can fuse them into few kernels.
type batch struct {
	sgd     []kernels.SGDStep
	adamW   []kernels.AdamWStep
	rmsProp []kernels.RMSPropStep
	size    int // the bytes of the gradients
}

// enqueue enqueues the updates, and empties the batch.
func (b *batch) enqueue(dev device.Device) error {
	defer b.clear()
	k, s := kernels.Of(dev), dev.Compute()
	var errs [3]error
	if len(b.sgd) > 0 {
		errs[0] = k.SGD(s, b.sgd...)
	}
	if len(b.adamW) > 0 {
		errs[1] = k.AdamW(s, b.adamW...)
	}
	if len(b.rmsProp) > 0 {
		errs[2] = k.RMSProp(s, b.rmsProp...)
	}
	return errors.Join(errs[:]...)
}

// clear empties the batch, and drops its references to memory.
func (b *batch) clear() {
	clear(b.sgd)
	clear(b.adamW)
	clear(b.rmsProp)
	b.sgd, b.adamW, b.rmsProp, b.size = b.sgd[:0], b.adamW[:0], b.rmsProp[:0], 0
}
