package decoder

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// MemoryOptions describe training with AdamW: see [Model.Memory].
type MemoryOptions struct {
	Rows, Length  int          // of the tokens of a forward pass on one rank
	MasterWeights bool         // Float32 masters of parameters of 16 bits
	MomentDType   device.DType // of AdamW's moments; Invalid means Float32
	Stage         int          // of package ddp/zero; 0 means package ddp
	Ranks         int          // 0 means 1
}

// MemoryPart is a part of the memory that a step takes on each device, in bytes.
type MemoryPart struct {
	Name  string
	Bytes int64
}

// Memory estimates what a training step takes on each device, part by part, from shapes alone: m need not be placed. The
// sum is what the tensors take when they take most. CUDA, its libraries and NCCL take about a GiB besides. docs/ddp.md
// compares the estimates with measurements.
func (m *Model) Memory(o MemoryOptions) []MemoryPart {
	ranks, tokens := int64(max(o.Ranks, 1)), int64(o.Rows*o.Length)
	divided := func(bytes int64, from int) int64 { // by the ranks, from a stage on
		if o.Stage >= from {
			bytes = (bytes + ranks - 1) / ranks
		}
		return bytes
	}
	var frozen, weights slotted
	var masters, moments int64
	for _, p := range m.Parameters() {
		n, size := int64(p.Shape().Len()), int64(p.DType().Size())
		if p.Frozen() {
			frozen.add(n * size)
			continue
		}
		weights.add(n * size)
		moment := size
		if size == 2 && o.MasterWeights {
			masters, moment = masters+4*n, 4
		}
		if moment == 4 && o.MomentDType != device.Invalid {
			moment = int64(o.MomentDType.Size())
		}
		moments += 2 * moment * n
	}
	slots := int64(0)
	switch o.Stage {
	case 2:
		slots = weights.slots()
	case 3:
		slots = 2*weights.slots() + frozen.slots()
	}
	b := m.blocks[0].memory()
	e := int64(m.tokens.Weight.DType().Size())
	layers, whole := int64(len(m.blocks)), b
	switch m.recompute {
	case RecomputeCheap:
		b.hidden, b.inner = b.hidden-2*b.size, b.inner-b.innerSize
		whole.transient += whole.innerSize
	case RecomputeBlocks:
		b = blockMemory{hidden: b.size, size: b.size}
	}
	vocab := int64(m.head.Weight.Shape()[0])
	logits := min(max((tokens+19)/20, 1<<24/vocab)+127, max(tokens, 1)) * vocab * e
	if !m.head.Weight.Frozen() {
		logits += vocab * b.size * e
	}
	again := int64(0) // of the block that the backward pass computes again
	if m.recompute == RecomputeBlocks {
		again = (whole.hidden+whole.inner+whole.attention+whole.size)*e + whole.statistics
	}
	backward := tokens * (again + (whole.transient+2*b.size)*e)
	return []MemoryPart{
		{"frozen weights", divided(frozen.bytes, 3)},
		{"weights", divided(weights.bytes, 3)},
		{"gradients", divided(weights.bytes, 2)},
		{"slots of whole buckets", slots},
		{"masters", divided(masters, 1)},
		{"moments", divided(moments, 1)},
		{"activations: residuals and norms", tokens * e * (layers*b.hidden + 2*b.size)},
		{"activations: attention", tokens * layers * (b.attention*e + b.statistics)},
		{"activations: feed-forward", tokens * layers * b.inner * e},
		{"loss, or gradients of a block", max(logits, backward)},
	}
}

// slotted is parameters that package ddp/zero divides among the ranks.
type slotted struct{ bytes, own, largest int64 }

// bucketBytes is the size of their buckets by default. A bucket of more than twice that size has its own memory.
const bucketBytes = 64 << 20

func (s *slotted) add(bytes int64) {
	if s.bytes += bytes; bytes > 2*bucketBytes {
		s.own += bytes
	} else {
		s.largest = max(s.largest, bytes)
	}
}

// slots returns the memory of the buckets that are whole at the same time.
func (s *slotted) slots() int64 {
	return s.own + min(3*max(s.largest, bucketBytes), s.bytes-s.own)
}

// blockMemory is what a block keeps for the backward pass, in elements for each token.
type blockMemory struct {
	hidden, attention, inner int64
	statistics               int64 // in bytes for each token
	size, innerSize          int64 // the hidden size and the feed-forward size
	transient                int64 // gradients that exist at the same time
}

// lowRanks returns what adapters keep.
func lowRanks(layers ...*nn.LinearLayer) (n int64) {
	for _, l := range layers {
		if l.LowRank != nil {
			n += int64(l.LowRank.A.Shape()[0])
		}
	}
	return n
}

func (b *llamaBlock) memory() blockMemory {
	hidden, inner, q, k := int64(b.c.Hidden), int64(b.c.Feedforward), int64(b.c.Heads*b.c.HeadSize), int64(b.c.KeyHeads*b.c.HeadSize)
	m := blockMemory{
		hidden: 4 * hidden, attention: 2*q + 2*k, inner: 3 * inner, size: hidden, innerSize: inner, transient: 3 * inner,
		statistics: int64(4 * (2 + b.c.Heads)),
	}
	if b.c.NormHeads {
		m.attention += q + k
		m.statistics += int64(4 * (b.c.Heads + b.c.KeyHeads))
	}
	m.attention += lowRanks(b.q, b.k, b.v, b.o)
	m.inner += lowRanks(b.gate, b.up, b.down)
	return m
}

func (b *gpt2Block) memory() blockMemory {
	hidden, inner := int64(b.headCount*b.headSize), int64(b.widen.Weight.Shape()[0])
	m := blockMemory{
		hidden: 4 * hidden, attention: 4 * hidden, inner: 2 * inner, size: hidden, innerSize: inner, transient: inner,
		statistics: int64(4 * (4 + b.headCount)),
	}
	m.attention += lowRanks(b.attend, b.attended)
	if adapters := lowRanks(b.widen, b.narrow); adapters > 0 { // GELU is an operation of its own
		m.inner, m.transient = m.inner+adapters, 2*inner
	}
	return m
}
