package commhook

import (
	"fmt"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// FP16 reduces buckets in Float16: 2 bytes for each parameter. It divides gradients by the number
// of ranks before it rounds them, so that sums do not overflow the type. Gradients below 6e-8
// become zero. hook reduces the rounded buckets; nil means AllReduce.
func FP16(hook reducer.Hook) reducer.Hook { return &cast{dt: device.Float16, hook: orAllReduce(hook)} }

// BF16 reduces buckets in BFloat16: 2 bytes for each parameter, with 8 bits of precision and the
// range of Float32. hook reduces the rounded buckets; nil means AllReduce.
func BF16(hook reducer.Hook) reducer.Hook { return &cast{dt: device.BFloat16, hook: orAllReduce(hook)} }

// cast reduces buckets in a smaller type. It passes buckets whose type is not larger to the inner
// hook unchanged.
type cast struct {
	dt   device.DType
	hook reducer.Hook
	mem  memory[*small]
}

// small holds a bucket's gradients rounded to the smaller type.
type small struct {
	flat   device.Tensor
	params []reducer.Param
	grads  []device.Tensor
}

func (c *cast) String() string { return fmt.Sprintf("%v, then %v", c.dt, c.hook) }

// Partial returns [reducer.IsPartial] of the inner hook.
func (c *cast) Partial() bool { return reducer.IsPartial(c.hook) }

// Stateless returns [reducer.IsStateless] of the inner hook.
func (c *cast) Stateless() bool { return reducer.IsStateless(c.hook) }

func (c *cast) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Flat.DType.Size() <= c.dt.Size() {
		return c.hook.Reduce(b)
	}
	s, err := c.mem.of(b, func() (*small, error) { return c.small(b) })
	if err != nil {
		return failed(b, err)
	}
	if err := divide(b); err != nil {
		return failed(b, err)
	}
	d := b.Group.Device()
	if err := d.Kernels().Copy(d.Compute(), s.flat, b.Flat); err != nil {
		return failed(b, err)
	}
	return andThen(c.hook.Reduce(hookBucket(b, b.Name, s.flat, s.params, s.grads)), func() error { return put(b, s.flat) })
}

func (c *cast) small(b reducer.GradBucket) (*small, error) {
	flat, err := alloc(b, c.dt, b.Flat.Len())
	if err != nil {
		return nil, err
	}
	s := &small{flat: flat}
	for i, g := range b.Grads {
		p := b.Params[i]
		p.DType = c.dt
		at := int(g.Buf.Addr()-b.Flat.Buf.Addr()) / g.DType.Size()
		s.params, s.grads = append(s.params, p), append(s.grads, place{at, g.Shape}.in(flat))
	}
	return s, nil
}
