package autograd

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/goddp/goddp/device"
)

// block is memory that one or more variables look at.
type block struct {
	buf     device.Buffer // empty where somebody else owns the memory, and where err is set
	err     error         // why what should be here could not be computed
	version uint64        // in-place writes to it so far: see BumpVersion
	held    bool          // another stream than Compute may read it: see HoldWrites
	made    int           // the step it was made in
	scope   *scope        // frees it when it ends; nil for memory of the program
	freed   string        // what freed it; empty while it lives
	cleanup runtime.Cleanup
}

// scope is a stretch of the program that owns what operations make in it.
type scope struct {
	blocks []*block
	opens  bool // a Checkpoint's, until an operation is applied: that one may begin the next step
}

// made puts memory, or the error that there is none, under the current scope.
func (s *state) made(buf device.Buffer, err error) *block {
	b := &block{buf: buf, err: err, made: s.number, scope: s.scope}
	s.scope.blocks = append(s.scope.blocks, b)
	return b
}

// end frees what was made in sc and not retained.
func (s *state) end(sc *scope, why string) {
	for _, b := range sc.blocks {
		if b.scope == sc {
			s.free(b, why)
		}
	}
	clear(sc.blocks)
	sc.blocks = sc.blocks[:0]
}

// free gives b's memory back to the device, unless that was done before.
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
		s.awaitReaders() // Free lets work on Compute write the memory
	}
	if b.buf.Len() > 0 {
		s.dev.Free(b.buf)
	}
	b.buf = device.Buffer{}
}

// advance begins the next step if op, about to be applied to in, is the first
// operation after a Backward that uses nothing made in the step of that
// Backward, gradients included.
func (s *state) advance(op string, in []*Variable) {
	if !s.opens(in) {
		return
	}
	s.ended = false
	s.number++
	s.end(s.step, fmt.Sprintf("when step %d began at %s", s.number, op))
}

// opens tells whether an operation that is about to be applied to in begins the next
// step: see advance. Of those in the first run of a Checkpoint only the first may, which
// tells of all of them whether they are part of the step.
func (s *state) opens(in []*Variable) bool {
	first := s.scope == s.step || s.scope.opens
	s.scope.opens = false
	if !s.ended || !first {
		return false
	}
	return !slices.ContainsFunc(in, func(v *Variable) bool { return v.mem.scope == s.step || v.grad })
}

// Scope calls f and frees, when f returns or panics, what operations on dev
// made in it and f did not retain.
func Scope(dev device.Device, f func()) { stateOf(dev).inScope("when its scope ended", f) }

// inScope runs f in a scope of its own, whose end is why what was made in it is
// gone.
func (s *state) inScope(why string, f func()) {
	outer := s.scope
	s.scope = &scope{}
	defer func() {
		s.end(s.scope, why)
		s.scope = outer
	}()
	f()
}

// adopt makes sc the owner of b, if that is from's.
func (sc *scope) adopt(b *block, from *scope) {
	if b.scope == from {
		b.scope = sc
		sc.blocks = append(sc.blocks, b)
	}
}

// NoGrad is [Scope] for code that needs no gradients, such as an evaluation:
// operations on dev are not recorded while f runs.
func NoGrad(dev device.Device, f func()) {
	s := stateOf(dev)
	s.noGrad++
	defer func() { s.noGrad-- }()
	Scope(dev, f)
}

// repeating runs f, which ran before: its operations change no state of a layer again.
func (s *state) repeating(f func()) {
	s.repeats++
	defer func() { s.repeats-- }()
	f()
}

// recording runs f with its operations recorded, whatever NoGrad is around it.
func (s *state) recording(f func()) {
	depth := s.noGrad
	s.noGrad = 0
	defer func() { s.noGrad = depth }()
	f()
}

// Retain makes v outlive the scope, or the step, that it was made in: from now
// on it is the program's, freed by the collector or by [Variable.Free]. Its
// graph is not retained. Retain returns v.
func (v *Variable) Retain() *Variable {
	v.alive()
	if v.mem.scope != nil {
		v.s.addToScope(v.mem)
	}
	return v
}

// Free gives v's memory back to the device at once. v, and whatever shares its
// memory, must not be used again. Free does nothing when v was freed before;
// memory that [FromTensor] was given stays its owner's.
func (v *Variable) Free() { v.s.free(v.mem, "by Free") }

// alive comes before each use of v. It panics with a [*FreedError] when v was
// freed.
func (v *Variable) alive() {
	if v.mem.freed != "" {
		panic(&FreedError{Op: v.op, Name: v.name, Step: v.mem.made, Freed: v.mem.freed})
	}
	if v.sink != nil {
		v.sink.Settle()
	}
}
