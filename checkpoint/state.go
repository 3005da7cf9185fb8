package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/jsonfloat"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// State lists what a checkpoint holds. Save reads it and Load writes it. All ranks set the same
// fields, with the same names.
type State struct {
	// Model is the model whose weights are saved, under the names of [nn.State]. Package ddp or
	// ddp/zero may wrap it.
	Model nn.Model
	// Optimizers are the program's optimizers, such as [*optim.AdamW], [*optim.EMA] around one, or
	// [*zero.Optimizer], always in the same order.
	Optimizers []optim.Optimizer
	// Hook is the communication hook, or nil. Each rank has its own hook state, which is restored only if
	// the number of ranks has not changed since the save.
	Hook Hook
	// Values are the program's own values by name, such as the position of the sampler. Each is a
	// pointer, or encodes itself as JSON, as [*amp.Scaler] does. They are the same on all ranks;
	// rank 0's are saved. Loading a checkpoint that lacks one is an error. A float may be NaN or infinite:
	// in the manifest it is then the string "NaN", "+Inf" or "-Inf".
	Values map[string]any
	// RankValues are values that differ between ranks. They are restored only if the number of
	// ranks is the same as at the save. Otherwise they are unchanged. A value that is also in Values, under the same name,
	// then has rank 0's value. All values of a rank together, as JSON, are below 8 MiB.
	RankValues map[string]any
	// Best marks the checkpoint as the best so far. Options.Keep keeps the last marked one, which [Best] returns. Only
	// Save of rank 0 uses it.
	Best bool
}

// Hook is a communication hook with a state, such as [commhook.PowerSGD].
type Hook interface {
	// State returns the hook's state, in the host's memory.
	State(ctx context.Context) (map[string]device.Tensor, error)
	LoadState(state map[string]device.Tensor) error
}

const modelKind = "model"

func optimizerKind(i int) string { return fmt.Sprintf("optimizer%d", i) }
func hookKind(rank int) string   { return fmt.Sprintf("hook%d", rank) }

// item is a tensor of the state, or this rank's elements of it.
type item struct {
	kind, name string
	v          *autograd.Variable
	nn.Span
	sharded bool // whether the elements are divided among the ranks; if false, each rank has all of them
	buffer  bool // whether it is a buffer of the model, or an average of a buffer; it may differ between ranks, and rank 0's is saved
}

// items returns the tensors of the state, in the order of their kinds and names.
func (s *State) items() ([]item, error) {
	var all []item
	buffers := map[string]bool{}
	if s.Model != nil {
		for _, b := range nn.Buffers(s.Model) {
			buffers[b.Name()] = true
		}
		parts := partsOf(s.Model)
		for name, v := range nn.State(s.Model) {
			if b := parts[v]; b != nil {
				span, _ := b.Span()
				all = append(all, item{modelKind, name, b.Var(), span, true, false})
				continue
			}
			all = append(all, item{modelKind, name, v, nn.Span{Whole: v.Shape(), Hi: v.Shape().Len()}, false, buffers[name]})
		}
	}
	for i, opt := range s.Optimizers {
		state, err := opt.State()
		if err != nil {
			return nil, err
		}
		for _, b := range state {
			owner := b.Name()[:max(0, strings.LastIndexByte(b.Name(), '.'))]
			span, sharded := b.Span()
			all = append(all, item{optimizerKind(i), b.Name(), b.Var(), span, sharded, buffers[owner]})
		}
	}
	slices.SortFunc(all, func(a, b item) int { return strings.Compare(key(a.kind, a.name), key(b.kind, b.name)) })
	for i := 1; i < len(all); i++ {
		if all[i].kind == all[i-1].kind && all[i].name == all[i-1].name {
			return nil, fmt.Errorf("two tensors are called %s", key(all[i].kind, all[i].name))
		}
	}
	return all, nil
}

// partsOf returns this rank's parts of the model's divided parameters, by the variable of the whole.
func partsOf(m nn.Model) map[*autograd.Variable]*nn.Buffer {
	parts := map[*autograd.Variable]*nn.Buffer{}
	for _, p := range m.Parameters() {
		if b := p.Part(); b != nil {
			parts[p.Var()] = b
		}
	}
	return parts
}

// layout returns a hash of the names, types and shapes of the state, which must be the same on all
// ranks.
func layout(items []item) uint64 {
	h := fnv.New64a()
	for _, it := range items {
		fmt.Fprintln(h, it.kind, it.name, it.v.DType(), it.Whole)
	}
	return h.Sum64()
}

// piece is the elements lo to hi-1 of a tensor, which this rank writes.
type piece struct {
	kind, name string
	dtype      device.DType
	whole      device.Shape
	lo, hi     int
	t          device.Tensor      // the elements
	v          *autograd.Variable // the variable that contains the elements; nil once they are copied
	buffer     bool               // whether t belongs to a buffer of the model, which a forward pass may write
}

// shape returns the piece's shape in the file. It is the tensor's shape if the piece is the whole
// tensor.
func (p *piece) shape() device.Shape {
	if p.hi-p.lo == p.whole.Len() {
		return p.whole
	}
	return device.Shape{p.hi - p.lo}
}

// pieces divides a state among ranks and returns the share of one rank. The share has the rank's elements of
// the sharded tensors, and an equal part, in bytes, of the tensors that all ranks have. Rank 0's share also
// has all buffers and all empty tensors.
func pieces(items []item, rank, size int) []piece {
	total := 0
	for _, it := range items {
		if !it.sharded && !it.buffer {
			total += it.v.Tensor().Bytes()
		}
	}
	from, to := shareStart(total, rank, size), shareStart(total, rank+1, size)
	var mine []piece
	at := 0
	for _, it := range items {
		t := it.v.Tensor()
		lo, hi := 0, t.Len() // the range of t's elements in this share
		switch {
		case it.sharded:
		case it.buffer:
			if rank > 0 {
				continue
			}
		default:
			width := t.DType.Size()
			lo, hi = elementsBefore(from-at, width, t.Len()), elementsBefore(to-at, width, t.Len())
			at += t.Bytes()
		}
		if lo == hi && (it.Whole.Len() > 0 || rank > 0) {
			continue
		}
		mine = append(mine, piece{it.kind, it.name, t.DType, it.Whole, it.Lo + lo, it.Lo + hi, t.Flat().Range(lo, hi), it.v, it.buffer})
	}
	return mine
}

// shareStart returns the first byte of a rank's share of total bytes.
func shareStart(total, rank, size int) int {
	each, more := total/size, total%size
	return rank*each + min(rank, more)
}

// elementsBefore returns the number of elements that begin before byte end, of n elements of width bytes each.
func elementsBefore(end, width, n int) int {
	return min(max((end+width-1)/width, 0), n)
}

// encodeValues returns the JSON of values.
func encodeValues(values map[string]any) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for name, v := range values {
		data, err := jsonfloat.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("value %q: %w", name, err)
		}
		out[name] = data
	}
	return out, nil
}

// decodeValues decodes the saved values into values.
func decodeValues(values map[string]any, saved map[string]json.RawMessage) error {
	for name, v := range values {
		if err := jsonfloat.Unmarshal(saved[name], v); err != nil {
			return fmt.Errorf("value %q, %s: %w", name, saved[name], err)
		}
	}
	return nil
}

// lacking returns the names of the values in a that b lacks.
func lacking[A, B any](a map[string]A, b map[string]B) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}
