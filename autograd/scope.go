package autograd

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// block is memory that one or more variables share.
type block struct {
	buf     device.Buffer   // empty if the program owns the memory (FromTensor), and if err is set
	err     error           // the error that prevented the computation of the content
	version uint64          // the number of in-place writes: see BumpVersion
	source  gradsink.Source // fills the memory before it is read; nil: none
	held    bool            // whether a stream other than Compute may read the memory: see gradsink.HoldWrites
	made    int             // the step in which it was made
	scope   *scope          // the scope whose end frees it; nil if it belongs to the program
	freed   string          // the cause of its release; empty while it is not freed
	// isGivenUp says that Free, Expire or Recompute freed the block. A backward pass may still go through its variables
	// without reading their values.
	isGivenUp bool
	shared    bool // whether several variables have had the memory
	cleanup   runtime.Cleanup
}

// scope is a section of the program's execution that owns the results of the operations within it.
type scope struct {
	blocks []*block
	opens  bool // whether the next operation may start the next step: true for a Checkpoint's scope until its first operation

	// untaped has the operands of each operation that is not in the graph, by the operation's result. The second
	// run of a Checkpoint computes these operations again. untaped is nil in other scopes.
	untaped map[*block][]read
}

// made returns a block of the current scope for new memory, or for the error of its allocation.
func (s *state) made(buf device.Buffer, err error) *block {
	b := &block{buf: buf, err: err, made: s.number, scope: s.scope}
	s.scope.blocks = append(s.scope.blocks, b)
	return b
}

// end frees the blocks of sc that were not retained.
func (s *state) end(sc *scope, why string) {
	for _, b := range sc.blocks {
		if b.scope == sc {
			s.free(b, why)
		}
	}
	clear(sc.blocks)
	sc.blocks = sc.blocks[:0]
}

// free returns b's memory to the device, unless it was freed before.
func (s *state) free(b *block, why string) {
	if b.freed != "" {
		return
	}
	b.freed = why
	if b.scope == nil {
		b.cleanup.Stop()
		s.owned -= int64(b.buf.Len())
	}
	if b.held {
		s.awaitReaders() // after Free, work on Compute may write the memory
	}
	if b.buf.Len() > 0 {
		s.dev.Free(b.buf)
	}
	b.buf = device.Buffer{}
}

// advance starts the next step if op is the first operation after a Backward that uses no result and no
// gradient of that Backward's step. It is called before op is applied to in.
func (s *state) advance(op string, in []*Variable) {
	if s.opens(in) {
		s.begin(op)
	}
}

// begin starts the next step, at op.
func (s *state) begin(op string) {
	s.ended = false
	s.number++
	s.end(s.step, fmt.Sprintf("when step %d began at %s", s.number, op))
}

// opens reports whether an operation on the operands `in` starts the next step: see advance. In the first run of a
// Checkpoint only the first operation can start it.
func (s *state) opens(in []*Variable) bool {
	first := s.scope == s.step || s.scope.opens
	s.scope.opens = false
	if !s.ended || !first {
		return false
	}
	return !slices.ContainsFunc(in, func(v *Variable) bool { return v.mem.scope == s.step || v.grad })
}

// Scope calls f. When f returns or panics, Scope frees the results of operations on dev that f made and
// did not retain.
func Scope(dev device.Device, f func()) { stateOf(dev).inScope("when its scope ended", f) }

// inScope runs f in a new scope. why is the cause that a [FreedError] reports for results of the scope.
func (s *state) inScope(why string, f func()) {
	outer := s.scope
	s.scope = &scope{}
	defer func() {
		s.end(s.scope, why)
		s.scope = outer
	}()
	f()
}

// adopt moves b from the scope `from` to sc, if b belongs to `from`.
func (sc *scope) adopt(b *block, from *scope) {
	if b.scope == from {
		b.scope = sc
		sc.blocks = append(sc.blocks, b)
	}
}

// NoGrad is [Scope] for code that needs no gradients, such as an evaluation: operations on dev are not
// recorded while f runs.
func NoGrad(dev device.Device, f func()) {
	s := stateOf(dev)
	s.noGrad++
	defer func() { s.noGrad-- }()
	Scope(dev, f)
}

// repeating runs f for the second time: its operations do not update a layer's state again.
func (s *state) repeating(f func()) {
	s.repeats++
	defer func() { s.repeats-- }()
	f()
}

// taping runs f and puts its operations on the tape, even within NoGrad.
func (s *state) taping(f func()) {
	depth := s.noGrad
	s.noGrad = 0
	defer func() { s.noGrad = depth }()
	f()
}

// Retain makes v outlive its scope or step. From now on v belongs to the program and is freed by the
// garbage collector or by [Variable.Free]. The graph of v is not retained. Retain returns v.
func (v *Variable) Retain() *Variable {
	v.alive()
	if v.mem.scope != nil {
		v.s.addToProgram(v.mem)
	}
	return v
}

// Free returns v's memory to the device at once. The program must not use v, or a variable that shares
// its memory, again. A backward pass may still go through v, unless a gradient reads its value. Free does
// nothing if v was freed before. It frees no memory that [FromTensor] was given.
func (v *Variable) Free() { v.giveUp("by Free") }

// Expire ends the use of v, a leaf that [FromTensor] made, before its owner writes other content to the memory.
// Expire frees nothing. A later use of v panics with a [*FreedError] that holds why, such as "when step 4 ended".
// A backward pass may still go through v, unless a gradient reads its value.
func (v *Variable) Expire(why string) { v.giveUp(why) }

func (v *Variable) giveUp(why string) {
	if v.mem.freed == "" {
		v.mem.isGivenUp = true
		v.s.free(v.mem, why)
	}
}

// alive precedes each use of v. It panics with a [*FreedError] if v was freed.
func (v *Variable) alive() {
	if v.mem.freed != "" {
		panic(&FreedError{Op: v.op, Name: v.name, Step: v.mem.made, Freed: v.mem.freed})
	}
	if r := v.s.capturing; r != nil && v.mem.scope == nil {
		r.reads[v.mem] = true
	}
	if v.sink != nil {
		v.sink.Settle()
	}
}

// hasSource reports whether v's memory keeps v's values for one operation only, so that no later operation may read them.
// A nil v has no memory.
func (v *Variable) hasSource() bool { return v != nil && v.mem.source != nil }

// use precedes each read of v's memory by an operation, the one that s.applied counts.
func (v *Variable) use(isTaped bool) error {
	if v.mem.source == nil {
		return nil
	}
	return v.mem.source.Use(v.s.applied, isTaped)
}
