package generate

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
)

// Options are the choices of [Generator.Generate].
type Options struct {
	MaxTokens int   // the maximum number of new tokens in a row; 0 means as many as the Generator has positions for
	Stop      []int // a row ends after one of these tokens
	Vocab     int   // if positive, only tokens below it are chosen: a model may have more, so that its sizes are even

	Temperature       float64 // the logits are divided by it; 0 chooses the most probable token
	TopK              int     // if positive, only the TopK most probable tokens are chosen from
	TopP              float64 // if positive, only the fewest most probable tokens whose probabilities add up to TopP
	RepetitionPenalty float64 // positive logits of tokens in the row are divided by it, negative ones multiplied; 0 means 1
	Seed              uint64  // of the choices; each row has its own sequence

	// OnToken, if not nil, is called with each new token as it is chosen. The row ends after the token if it returns
	// false.
	OnToken func(row, id int) (more bool)
}

// reads reports whether the choice needs the logits on the host.
func (o *Options) reads() bool { return o.Temperature > 0 || o.Vocab > 0 || o.penalty() != 1 }

func (o *Options) penalty() float64 { return cmp.Or(o.RepetitionPenalty, 1) }

// Generator continues rows of tokens with one model. It must be used by one goroutine at a time.
type Generator struct {
	model           *decoder.Model
	dev             device.Device
	cache           *decoder.Cache
	rows, positions int
	// These steps compute the next token of each row [rows 1], or its logits [rows 1 vocab], from the last one and its
	// position.
	choose, score step
}

type step func(in ...*autograd.Variable) (*autograd.Variable, error)

// New returns a Generator for up to so many rows at a time, of so many positions: a row and its prompt have at most one
// token more, because the last one needs no position. m must be on a
// device, and in evaluation mode if it has dropout.
func New(m *decoder.Model, rows, positions int) (*Generator, error) {
	c, err := m.NewCache(rows, positions)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	g := &Generator{model: m, dev: m.Parameters()[0].Var().Device(), cache: c, rows: rows, positions: positions}
	g.choose = g.step(func(logits *autograd.Variable) *autograd.Variable { return autograd.ArgMax(logits, 2) })
	g.score = g.step(func(logits *autograd.Variable) *autograd.Variable { return autograd.Cast(logits, device.Float32) })
	return g, nil
}

// step returns a step whose result is made from the logits.
func (g *Generator) step(result func(logits *autograd.Variable) *autograd.Variable) step {
	f := func(in ...*autograd.Variable) (y *autograd.Variable, err error) {
		autograd.NoGrad(g.dev, func() { y = result(g.model.Logits(g.cache.Continue(in[0], in[1]))).Retain() })
		return y, g.cache.Err()
	}
	if g.dev.Type() != device.CUDA {
		return f
	}
	return autograd.Capture(g.dev, f, nil)
}

// Generate continues the prompts, and returns the new tokens of each. A row ends after Options.MaxTokens, after a token
// of Options.Stop, or when it has used up the Generator's positions. Prompts may have different lengths.
// opts may be nil.
func (g *Generator) Generate(ctx context.Context, prompts [][]int, opts *Options) ([][]int, error) {
	out, err := g.generate(ctx, prompts, cmp.Or(opts, &Options{}))
	if err != nil {
		return out, fmt.Errorf("generate: %w", err)
	}
	return out, nil
}

func (g *Generator) generate(ctx context.Context, prompts [][]int, o *Options) ([][]int, error) {
	if !(o.Temperature >= 0 && o.TopK >= 0 && o.TopP >= 0 && o.TopP <= 1 && o.RepetitionPenalty >= 0) { // NaN is none of them
		return nil, fmt.Errorf("got Temperature %v, TopK %d, TopP %v and RepetitionPenalty %v, want none below 0, and TopP at most 1",
			o.Temperature, o.TopK, o.TopP, o.RepetitionPenalty)
	}
	if len(prompts) < 1 || len(prompts) > g.rows {
		return nil, fmt.Errorf("%d prompts, want 1 to %d", len(prompts), g.rows)
	}
	rows := make([]*row, g.rows)
	for i := range rows {
		rows[i] = &row{o: o, random: rand.New(rand.NewPCG(o.Seed, uint64(i))), tokens: []int{0}, isDone: i >= len(prompts)}
		if rows[i].isDone {
			continue
		}
		if n := len(prompts[i]); n < 1 || n > g.positions {
			return nil, fmt.Errorf("prompt %d has %d tokens, want 1 to %d", i, n, g.positions)
		}
		if first, last, v := slices.Min(prompts[i]), slices.Max(prompts[i]), g.model.Vocab(); first < 0 || last >= v {
			return nil, fmt.Errorf("prompt %d has tokens from %d to %d, want 0 to %d, those of the model", i, first, last, v-1)
		}
		rows[i].tokens, rows[i].prompt = slices.Clone(prompts[i]), len(prompts[i])
	}
	var reader device.Stream // of the chosen tokens; nil if the host chooses, or on the CPU, which has no queue
	if !o.reads() && g.dev.Type() == device.CUDA {
		var err error
		if reader, err = g.dev.NewStream(false); err != nil {
			return nil, err
		}
		defer reader.Close()
	}
	y, err := g.start(rows, o.reads())
	for err == nil {
		if err = context.Cause(ctx); err != nil {
			break
		}
		var next *autograd.Variable
		if reader != nil {
			y.Retain()
			err = reader.WaitFor(g.dev.Compute().Mark())
			if err == nil && slices.ContainsFunc(rows, func(r *row) bool { return !r.isDone && !r.isFull(1, g.positions) }) {
				next, err = g.next(rows, y, false) // the GPU does not wait until the host has read y
			}
		}
		if err == nil {
			err = g.take(ctx, reader, rows, y, o.reads())
		}
		if err != nil || !slices.ContainsFunc(rows, func(r *row) bool { return !r.isDone }) {
			break
		}
		if next == nil {
			next, err = g.next(rows, nil, o.reads())
		}
		y = next
	}
	out := make([][]int, len(prompts))
	for i := range out {
		out[i] = rows[i].tokens[rows[i].prompt:]
	}
	return out, err
}

// start computes the prompts. Its result is that of a step.
func (g *Generator) start(rows []*row, reads bool) (y *autograd.Variable, err error) {
	t := 0
	for _, r := range rows {
		t = max(t, len(r.tokens))
	}
	ids, last := make([]int64, g.rows*t), make([]int64, g.rows)
	for i, r := range rows {
		for k, id := range r.tokens {
			ids[i*t+k] = int64(id)
		}
		last[i] = int64(i*t + len(r.tokens) - 1)
	}
	autograd.NoGrad(g.dev, func() {
		hidden := g.cache.Start(autograd.FromSlice(g.dev, ids, g.rows, t))
		s := hidden.Shape()
		hidden = autograd.IndexSelect(autograd.Reshape(hidden, s[0]*s[1], s[2]), 0, autograd.FromSlice(g.dev, last, g.rows))
		y = g.model.Logits(autograd.Reshape(hidden, g.rows, 1, s[2]))
		if reads {
			y = autograd.Cast(y, device.Float32)
		} else {
			y = autograd.ArgMax(y, 2)
		}
		y.Retain()
	})
	return y, errors.Join(y.Err(), g.cache.Err())
}

// next enqueues a step for the last token of each row. If y is not nil, that is the token that y holds and the host has
// not read.
func (g *Generator) next(rows []*row, y *autograd.Variable, reads bool) (*autograd.Variable, error) {
	ids, positions := make([]int64, g.rows), make([]int64, g.rows)
	for i, r := range rows {
		n := len(r.tokens)
		ids[i] = int64(r.tokens[n-1])
		if y != nil && !r.isDone {
			n++
		}
		positions[i] = int64(min(n, g.positions) - 1) // a row that has ended may be full
	}
	if y == nil {
		y = autograd.FromSlice(g.dev, ids, g.rows, 1)
	}
	f := g.choose
	if reads {
		f = g.score
	}
	return f(y, autograd.FromSlice(g.dev, positions, g.rows, 1))
}

// take adds the next token to each row, from the result of a step. It reads y on reader, if that is not nil, and frees y.
func (g *Generator) take(ctx context.Context, reader device.Stream, rows []*row, y *autograd.Variable, reads bool) (err error) {
	if err := y.Err(); err != nil {
		return err
	}
	var bytes []byte
	if reader != nil {
		bytes = make([]byte, y.Tensor().Bytes())
		err = g.dev.CopyOut(ctx, reader, bytes, y.Tensor().Buf)
	} else {
		bytes, err = y.Bytes(ctx)
	}
	if err != nil {
		return err
	}
	y.Free()
	width := len(bytes) / g.rows
	choose := func(i int) int { return int(binary.LittleEndian.Uint64(bytes[i*width:])) }
	if reads {
		chosen := sample(rows, bytes, width)
		choose = func(i int) int { return chosen[i] }
	}
	for i, r := range rows {
		if r.isDone {
			continue
		}
		id := choose(i)
		r.tokens = append(r.tokens, id)
		more := r.o.OnToken == nil || r.o.OnToken(i, id)
		r.isDone = !more || slices.Contains(r.o.Stop, id) || r.isFull(0, g.positions)
	}
	return nil
}
