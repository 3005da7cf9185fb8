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
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// A State names what a checkpoint holds. Save reads it and Load writes it. All ranks give
// the same fields, with the same names.
type State struct {
	// Model has the weights, by the names of [nn.State]. It may be wrapped by package ddp
	// or ddp/zero.
	Model nn.Model
	// Optimizers are those of the program, such as [*optim.AdamW], [*optim.EMA] around one
	// or [*zero.Optimizer], always in the same order.
	Optimizers []Optimizer
	// Hook is the communication hook's state, nil for none. Each rank has its own, which
	// is restored only at the number of ranks that it was saved at.
	Hook Hook
	// Values are the program's own, such as the position of the sampler, by name: pointers,
	// or what encodes itself as JSON, such as an [*amp.Scaler]. They are alike on all ranks;
	// those of rank 0 are saved. To load a checkpoint that lacks one is an error.
	Values map[string]any
	// RankValues are values that each rank has of its own. They are restored only at
	// the number of ranks that they were saved at, and are otherwise left as they are.
	RankValues map[string]any
}

// Optimizer is what a checkpoint needs to know of one: see [optim.SGD] for the methods.
type Optimizer interface {
	Committed() (steps int, whole bool)
	State() ([]*nn.Buffer, error)
	Restoring()
	Restored(steps int)
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
	// divided: each rank has its own elements. Otherwise all have all of them.
	divided bool
	// first: it is a buffer of the model, or its average. Rank 0's count, because those of others
	// may differ.
	first bool
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
			// What is kept for a buffer of the model, as an average is, differs as the buffer does.
			owner := b.Name()[:max(0, strings.LastIndexByte(b.Name(), '.'))]
			span, divided := b.Span()
			all = append(all, item{optimizerKind(i), b.Name(), b.Var(), span, divided, buffers[owner]})
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
	v          *autograd.Variable // that has them; nil for a hook's
	forward    bool               // a forward pass may write them
}

// shape is the piece's in the file: that of the tensor where it is all of it.
func (p *piece) shape() device.Shape {
	if p.hi-p.lo == p.whole.Len() {
		return p.whole
	}
	return device.Shape{p.hi - p.lo}
}

// pieces divides a state among ranks and returns rank's share: the elements of divided
// tensors that it has, and as many bytes as any other rank of the rest. Empty tensors
// are rank 0's.
func pieces(items []item, rank, size int) []piece {
	total := 0
	for _, it := range items {
		if !it.divided && !it.first {
			total += it.v.Tensor().Bytes()
		}
	}
	from, to := cut(total, rank, size), cut(total, rank+1, size)
	var mine []piece
	at := 0
	for _, it := range items {
		t := it.v.Tensor()
		lo, hi := 0, t.Len() // of t
		switch {
		case it.divided:
		case it.first:
			if rank > 0 {
				continue
			}
		default:
			width := t.DType.Size()
			lo, hi = elements(from-at, width, t.Len()), elements(to-at, width, t.Len())
			at += t.Bytes()
		}
		if lo == hi && (it.Whole.Len() > 0 || rank > 0) {
			continue
		}
		mine = append(mine, piece{it.kind, it.name, t.DType, it.Whole, it.Lo + lo, it.Lo + hi, t.Flat().Range(lo, hi), it.v, it.first})
	}
	return mine
}

// cut is where rank's share of total bytes begins.
func cut(total, rank, size int) int {
	each, more := total/size, total%size
	return rank*each + min(rank, more)
}

// elements is how many of n elements of some bytes begin before a byte.
func elements(before, width, n int) int {
	return min(max((before+width-1)/width, 0), n)
}

// encodeValues is a snapshot of values.
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

// lacking are the values that were not saved.
func lacking(values map[string]any, saved map[string]json.RawMessage) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, there := saved[name]; !there {
			names = append(names, name)
		}
	}
	return names
}

// dtypeName is the name of a type in files.
func dtypeName(dt device.DType) safetensors.DType { return safetensors.Of(dt) }
