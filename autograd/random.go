package autograd

import (
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// RandomGenerator gives the operations of a device their random numbers, from one sequence that the
// seed selects: see [Generator].
type RandomGenerator struct {
	state       generatorState
	rank, ranks uint64
}

// generatorState is a generator's position in its sequence. A checkpoint stores it, and any number of
// ranks can continue from it.
type generatorState struct {
	Seed   uint64 `json:"seed"`
	Offset uint64 `json:"offset"`
}

// Generator returns the device's generator. Its initial seed is 0.
func Generator(dev device.Device) *RandomGenerator { return &stateOf(dev).random }

// Seed starts the sequence of a seed.
func (g *RandomGenerator) Seed(seed uint64) { g.state = generatorState{Seed: seed} }

// MarshalJSON encodes the position in the sequence, for a checkpoint. Any number of ranks can continue
// from it.
func (g *RandomGenerator) MarshalJSON() ([]byte, error) { return json.Marshal(g.state) }

// UnmarshalJSON continues at a position that MarshalJSON encoded.
func (g *RandomGenerator) UnmarshalJSON(data []byte) error {
	var s generatorState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	g.state = s
	return nil
}

// SetShard makes the generator one of several ranks that share a sequence, because their batches are
// parts of one global batch. If each rank draws n numbers, together they draw ranks·n numbers of the sequence,
// and this rank gets the numbers rank·n to (rank+1)·n-1 of them. So if the ranks' batches have equal sizes and
// follow each other in rank order, the numbers for a global batch do not depend on the number of ranks. ddp.New calls
// SetShard with the rank in its group. SetShard panics unless 0 ≤ rank < ranks.
func (g *RandomGenerator) SetShard(rank, ranks int) {
	if rank < 0 || rank >= ranks {
		panic(fmt.Errorf("autograd: SetShard: rank %d of %d ranks: want 0 <= rank < ranks", rank, ranks))
	}
	g.rank, g.ranks = uint64(rank), uint64(ranks)
}

// draw returns the position of this rank's next n numbers.
func (g *RandomGenerator) draw(n int) kernels.Position {
	at := kernels.Position{Seed: g.state.Seed, Offset: g.state.Offset + g.rank*uint64(n)}
	g.state.Offset += max(g.ranks, 1) * uint64(n)
	return at
}

// Dropout sets each element of x to 0 with probability p, and divides the other elements by 1-p. The
// device's [Generator] draws the mask. Dropout panics unless 0 ≤ p ≤ 1.
func Dropout(x *Variable, p float64) *Variable {
	kernels.DropoutThreshold(p)
	if p == 0 {
		return x
	}
	return Apply(dropout{p, x.s.position(x.t.Len())}, x)
}

// dropout does not keep its mask but the mask's position in the random sequence, and draws the mask again for the
// gradient.
type dropout struct {
	p  float64
	at kernels.Position
}

func (dropout) Name() string { return "Dropout" }

func (dropout) Shape(in []device.Shape) device.Shape { return in[0] }

func (dropout) Saves(_, _ int) bool { return false }

func (f dropout) Forward(c *Call) error {
	return c.kernels.Dropout(c.Stream, c.Out, device.Store, c.In[0], f.p, f.at)
}

func (f dropout) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.Dropout(c.Stream, dst, acc, g, f.p, f.at)
}
