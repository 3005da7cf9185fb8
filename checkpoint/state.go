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
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// A State names what a checkpoint holds. Save reads it and Load writes it. All ranks give
// the same fields, with the same names.
type State struct {
	// Model has the weights, by the names of [nn.State]. It may be wrapped by package ddp
	// or ddp/zero.
	Model nn.Model
	// Optimizers are those of the program, such as [*optim.AdamW], [*optim.EMA] around one
	// or [*zero.Optimizer], always in the same order.
	Optimizers []optim.Optimizer
	// Hook is the communication hook, nil for none. Each rank's state is its own, and
	// is restored only at the number of ranks that it was saved at.
	Hook Hook
	// Values are the program's own, by name, such as the position of the sampler: pointers,
	// or what encodes itself as JSON, such as an [*amp.Scaler]. They are the same on all ranks,
	// and rank 0's are saved. It is an error to load a checkpoint that lacks one.
	Values map[string]any
	// RankValues are values that each rank has of its own. They are restored only at
	// the number of ranks that they were saved at, and are otherwise left as they are.
	RankValues map[string]any
}

// Hook is what a checkpoint needs to know of a communication hook with a state, such as
// [commhook.PowerSGD].
type Hook interface {
	// State is the hook's state, in the host's memory.
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
	sharded bool // each rank has other elements; if false, all ranks have all of them
	buffer  bool // of the model, or its average: ranks may differ, and rank 0's is saved
}

// items are the tensors of the state, in the order of their kinds and names.
func (s *State) items() ([]item, error) {
	var all []item
	buffers := map[string]bool{}
	if s.Model != nil {
		for _, b := range nn.Buffers(s.Model) {
			buffers[b.Name()] = true
		}
		for name, v := range nn.State(s.Model) {
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

// layout is a hash of the names, types and shapes of the state, which are the same on all
// ranks.
func layout(items []item) uint64 {
	h := fnv.New64a()
	for _, it := range items {
		fmt.Fprintln(h, it.kind, it.name, it.v.DType(), it.Whole)
	}
	return h.Sum64()
}

// A piece is elements lo to hi of a tensor, which this rank writes.
type piece struct {
	kind, name string
	dtype      device.DType
	whole      device.Shape
	lo, hi     int
	t          device.Tensor      // the elements
	v          *autograd.Variable // the variable that they are part of; nil if they were copied
	buffer     bool               // of the model: a forward pass may write it
}

// shape is the piece's in the file: that of the tensor where it is all of it.
func (p *piece) shape() device.Shape {
	if p.hi-p.lo == p.whole.Len() {
		return p.whole
	}
	return device.Shape{p.hi - p.lo}
}

// pieces divides a state among ranks and returns rank's share: its elements of sharded
// tensors, and an equal part, in bytes, of those that all ranks have. Rank 0's share has
// all buffers and all empty tensors too.
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
		lo, hi := 0, t.Len() // of t
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

// shareStart returns the first byte of rank's share of total bytes.
func shareStart(total, rank, size int) int {
	each, more := total/size, total%size
	return rank*each + min(rank, more)
}

// elementsBefore counts the elements, of n of width bytes each, that begin before a byte.
func elementsBefore(end, width, n int) int {
	return min(max((end+width-1)/width, 0), n)
}

// encodeValues takes a snapshot of values.
func encodeValues(values map[string]any) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for name, v := range values {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("value %q: %w", name, err)
		}
		out[name] = data
	}
	return out, nil
}

// decodeValues sets values to what was saved of them.
func decodeValues(values map[string]any, saved map[string]json.RawMessage) error {
	for name, v := range values {
		if err := json.Unmarshal(saved[name], v); err != nil {
			return fmt.Errorf("value %q, %s: %w", name, saved[name], err)
		}
	}
	return nil
}

// notSaved returns the names of the values that were not saved.
func notSaved(values map[string]any, saved map[string]json.RawMessage) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := saved[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}
