package autograd

import (
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// RandomGenerator is where the operations of a device draw random numbers from, in one
// sequence that the seed selects: see [Generator].
type RandomGenerator struct {
	state       GeneratorState
	rank, ranks uint64
}

// GeneratorState is what a checkpoint keeps of a generator: with it the same numbers
// are drawn again, by any number of ranks.
type GeneratorState struct {
	Seed   uint64 `json:"seed"`
	Offset uint64 `json:"offset"`
}

// Generator is the device's generator, with seed 0 at first.
func Generator(dev device.Device) *RandomGenerator { return &stateOf(dev).random }

// Seed begins the sequence of a seed.
func (g *RandomGenerator) Seed(seed uint64) { g.state = GeneratorState{Seed: seed} }

// State is where in its sequence the generator is.
func (g *RandomGenerator) State() GeneratorState { return g.state }

// SetState continues where a generator was.
func (g *RandomGenerator) SetState(s GeneratorState) { g.state = s }

// MarshalJSON is the state, for a checkpoint.
func (g *RandomGenerator) MarshalJSON() ([]byte, error) { return json.Marshal(g.state) }

// UnmarshalJSON continues at a state that MarshalJSON returned.
func (g *RandomGenerator) UnmarshalJSON(data []byte) error {
	var s GeneratorState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	g.SetState(s)
	return nil
}

// SetShard makes the generator one of ranks that share a sequence, as those of a data
// parallel job, whose batches are parts of one: each draw of n numbers is rank's n of
// the ranks·n that all of them draw. With ranks of equally large batches, in order, any
// number of ranks draws the same for one global batch. ddp.New calls SetShard with the
// rank in its group. It panics unless rank is below ranks.
func (g *RandomGenerator) SetShard(rank, ranks int) {
	if rank < 0 || rank >= ranks {
		panic(fmt.Errorf("autograd: SetShard: rank %d of %d", rank, ranks))
	}
	g.rank, g.ranks = uint64(rank), uint64(ranks)
}

// draw is where in the sequence the next n numbers of this rank are.
func (g *RandomGenerator) draw(n int) GeneratorState {
	at := g.state
	at.Offset += g.rank * uint64(n)
	g.state.Offset += max(g.ranks, 1) * uint64(n)
	return at
}

// Dropout is x with each element dropped, made 0, with the probability p, and the others
// divided by 1-p. What is dropped is drawn from the device's [Generator]. It panics unless
// p is within 0 to 1.
func Dropout(x *Variable, p float64) *Variable {
	kernels.DropoutThreshold(p)
	if p == 0 {
		return x
	}
	return Apply(dropout{p, x.s.random.draw(x.t.Len())}, x)
}

// dropout keeps where its mask is drawn from, and draws it again for the gradient.
type dropout struct {
	p  float64
	at GeneratorState
}

func (dropout) Name() string { return "Dropout" }

func (dropout) Shape(in []device.Shape) device.Shape { return in[0] }

func (dropout) Saves(_, _ int) bool { return false }

func (f dropout) Forward(c *Call) error {
	return c.kernels.Dropout(c.Stream, c.Out, device.Store, c.In[0], f.p, f.at.Seed, f.at.Offset)
}

func (f dropout) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.Dropout(c.Stream, dst, acc, g, f.p, f.at.Seed, f.at.Offset)
}
