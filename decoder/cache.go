package decoder

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
)

// Cache holds what a model has computed for the tokens of several rows, so that it continues them without computing
// those tokens again.
//
//	c, err := m.NewCache(rows, 1024)
//	...
//	logits := m.Logits(c.Start(prompts)) // [rows tokens vocab]
//	for p := tokens; ; p++ {
//		logits = m.Logits(c.Continue(next, positions)) // [rows 1 vocab]; each position is p
//	}
type Cache struct {
	model  *Model
	layers []*autograd.KVCache
	most   int                // the number of positions
	zeros  *autograd.Variable // [rows]
	err    error
}

// NewCache returns a cache for rows of up to so many positions. m must be on a device. The memory is 2 elements of the
// weights' type for each layer, row, position and element of a head of keys.
func (m *Model) NewCache(rows, positions int) (*Cache, error) {
	if rows < 1 || positions < 1 || positions > m.MaxPositions() {
		return nil, fmt.Errorf("decoder: a cache of %d rows and %d positions: want at least 1 of each, and at most the model's %d positions", rows, positions, m.MaxPositions())
	}
	c := &Cache{model: m, most: positions}
	for _, b := range m.blocks {
		heads, size := b.keys()
		w := m.tokens.Weight.Var()
		layer, err := autograd.NewKVCache(w.Device(), w.DType(), rows, positions, heads, size)
		if err != nil {
			return nil, fmt.Errorf("decoder: a cache of %d rows and %d positions: %w", rows, positions, err)
		}
		c.layers = append(c.layers, layer)
	}
	c.zeros = autograd.FromSlice(m.tokens.Weight.Var().Device(), make([]int64, rows), rows).Retain()
	return c, c.zeros.Err()
}

// Start forgets all tokens, and computes ids, int64 [rows t], from position 0 on. The result is that of [Model.Hidden].
// A row may be shorter than t: what follows its tokens is overwritten later, and no earlier token depends on it.
func (c *Cache) Start(ids *autograd.Variable) *autograd.Variable {
	c.err = nil
	return c.model.Hidden(ids, &ForwardOptions{Attend: func(layer int, q, k, v *autograd.Variable, opts *autograd.AttentionOptions) *autograd.Variable {
		c.write(layer, k, v, c.zeros)
		return autograd.ScaledDotProductAttention(q, k, v, opts)
	}})
}

// Continue computes one more token of each row: ids, int64 [rows 1], at positions, int64 [rows 1]. The result is
// that of [Model.Hidden]. On a GPU a step that calls Continue can be captured.
func (c *Cache) Continue(ids, positions *autograd.Variable) *autograd.Variable {
	at := autograd.Flatten(positions, 0)
	return c.model.Hidden(ids, &ForwardOptions{Positions: positions, most: c.most, Attend: func(layer int, q, k, v *autograd.Variable, opts *autograd.AttentionOptions) *autograd.Variable {
		return c.layers[layer].Append(q, k, v, at, opts)
	}})
}

func (c *Cache) write(layer int, k, v, first *autograd.Variable) {
	if err := c.layers[layer].Write(k, v, first); err != nil && c.err == nil {
		c.err = err
	}
}

// Err returns the first error of writing to the cache since Start.
func (c *Cache) Err() error { return c.err }
