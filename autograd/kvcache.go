package autograd

import (
	"cmp"
	"errors"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// KVCache holds the keys and values of one layer of attention, for the tokens of several rows, so that a model that
// continues the rows computes those of new tokens alone. It has no gradients.
type KVCache struct {
	keys, values *Variable // [B S Hkv D]
	arrived      *Variable // [B Hkv], what AttendLast keeps
}

// NewKVCache returns a cache for B rows of up to S tokens.
func NewKVCache(dev device.Device, dt device.DType, b, s, keyHeads, d int) (*KVCache, error) {
	c := &KVCache{Zeros(dev, dt, b, s, keyHeads, d).Retain(), Zeros(dev, dt, b, s, keyHeads, d).Retain(), Zeros(dev, device.Int32, b, keyHeads).Retain()}
	return c, errors.Join(c.keys.Err(), c.values.Err(), c.arrived.Err())
}

// Write stores k and v [B T Hkv D], the keys and values of T tokens of each row. first, int64 [B], are the positions of
// their first tokens.
func (c *KVCache) Write(k, v, first *Variable) error {
	dev := c.keys.Device()
	rows := func(t device.Tensor) device.Tensor { return t.Reshape(t.Shape[0], t.Shape[1], t.Shape[2]*t.Shape[3]) }
	set := kernels.Of(dev)
	return errors.Join(
		set.WriteRows(dev.Compute(), rows(c.keys.Tensor()), rows(k.Tensor()), first.Tensor()),
		set.WriteRows(dev.Compute(), rows(c.values.Tensor()), rows(v.Tensor()), first.Tensor()))
}

// Append stores k and v [B 1 Hkv D], the key and the value of one token of each row, at the positions last, int64 [B]. It
// returns the attention of q [B 1 H D], the query of the same token, to the stored tokens up to that position. Hkv divides H, as for [ScaledDotProductAttention]. Of opts, it reads Window and Scale.
func (c *KVCache) Append(q, k, v, last *Variable, opts *AttentionOptions) *Variable {
	f := &appended{c: c, last: last, AttentionOptions: *cmp.Or(opts, &AttentionOptions{})}
	if f.Scale == 0 {
		f.Scale = 1 / math.Sqrt(float64(max(q.t.Shape[len(q.t.Shape)-1], 1)))
	}
	return Apply(f, q, k, v)
}

type appended struct {
	AttentionOptions
	c    *KVCache
	last *Variable
}

func (*appended) Name() string { return "KVCache.Append" }

func (f *appended) Shape(in []device.Shape) device.Shape {
	for _, s := range in {
		if len(s) != 4 || s[1] != 1 {
			panic(&device.ShapeError{Op: f.Name(), A: s, Want: "queries, keys and values of shape [b 1 heads size]"})
		}
	}
	return in[0]
}

func (*appended) Saves(_, _ int) bool { return false }

func (f *appended) Forward(c *Call) error {
	flat := func(t device.Tensor) device.Tensor { return t.Reshape(t.Shape[0], t.Shape[2], t.Shape[3]) }
	return c.kernels.AttendLast(c.Stream, flat(c.Out), kernels.Last{
		Q: flat(c.In[0]), K: flat(c.In[1]), V: flat(c.In[2]), Keys: f.c.keys.Tensor(), Values: f.c.values.Tensor(), Last: f.last.Tensor(), Arrived: f.c.arrived.Tensor(),
		Scale: f.Scale, Window: f.Window,
	})
}

func (f *appended) Backward(*Call, int, device.Tensor, device.Accum, device.Tensor) error {
	return errors.New("autograd: " + f.Name() + " has no gradient")
}
