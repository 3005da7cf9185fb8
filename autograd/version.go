package autograd

import (
	"fmt"
)

// Version counts the in-place writes to v's memory that autograd was told of. All
// handles to one memory ([Variable.Detach], [Reshape]) have one version.
func (v *Variable) Version() uint64 { return v.mem.version }

// BumpVersion says that v's memory is about to be written in place. The caller enqueues the
// write on the compute stream, or behind it, after BumpVersion returns. The write then runs
// behind the reads that [HoldWrites] was told of. A [Variable.Backward] through an operation
// that read v before the write, and computes a gradient from what it read, panics with a
// [*ModifiedError].
//
// The optimizers, nn.LoadState, ddp and what else of this module writes variables call
// it. A program calls it before it writes the memory itself: by a kernel, a copy or a
// collective on [Variable.Tensor], or through memory that the variable shares
// ([FromTensor]). Variables that FromTensor made over one memory have a version each.
// Gradients need no call: operations copy those that they save.
func (v *Variable) BumpVersion() {
	v.mem.version++
	if v.mem.held {
		v.s.awaitReaders() // an error is the device's: the write fails with it too
	}
}

// ModifiedError is the panic value of a backward pass through an operation of which
// an operand, or the result, was written in place after the operation was applied, and
// whose backward computes a gradient from it. The usual cause is an optimizer's Step
// between a forward pass and its Backward: with two optimizers, such as a generator's
// and a discriminator's, each Backward has to come before the Step that changes what
// its graph reads, or the forward pass has to be run again.
//
// Backward panics before it changes any gradient, and keeps the graph. Only where a
// function given to [Checkpoint] finds it as it runs again, the pass fails.
type ModifiedError struct {
	Op       string // the operation, as in "MatMul"
	Variable string // what was written, by its name if it was given one: `variable "0.weight" float32[2 3]`
	Saved    uint64 // its version when the operation was applied
	Now      uint64 // its version at the backward pass
}

func (e *ModifiedError) Error() string {
	return fmt.Sprintf("autograd: the backward of %s needs %s as it was at version %d, and an in-place write, such as an optimizer's Step, has made it version %d: call Backward before the write, or run the forward pass again",
		e.Op, e.Variable, e.Saved, e.Now)
}

// Saver is a [Function] that says which operands its backward reads, so that those
// that it does not read may be written in place after the operation was applied. The
// backward of a Function that is no Saver reads all of them.
type Saver interface {
	Function
	// Saves tells whether Prepare, or Backward for input i, reads c.In[j], or, for
	// j = [Output], c.Out.
	Saves(i, j int) bool
}

// Output stands for the result of an operation: see [Saver].
const Output = -1

// input is an operand of an operation that was recorded.
type input struct {
	*Variable
	version uint64 // of its memory when the operation was applied
}

// check panics with a [*ModifiedError] unless x is as it was when op was applied.
func (x input) check(op string) {
	if now := x.mem.version; now != x.version {
		panic(&ModifiedError{Op: op, Variable: x.String(), Saved: x.version, Now: now})
	}
}

// saves tells whether the backward of n, as far as it is needed, reads input j, or for
// j = Output the result.
func (n *node) saves(j int) bool {
	f, ok := n.fn.(Saver)
	for i, x := range n.in {
		if x.node != nil && (!ok || f.Saves(i, j)) {
			return true
		}
	}
	return false
}

// checkVersions panics with a [*ModifiedError] if what the backward of n reads was
// written since n was recorded.
func (n *node) checkVersions() {
	if c, ok := n.fn.(*checkpoint); ok {
		c.checkVersions()
		return
	}
	for j, x := range n.in {
		if x.version != x.mem.version && n.saves(j) {
			x.check(n.fn.Name())
		}
	}
	// The version of a result is 0 when its operation was applied.
	if n.out.mem.version != 0 && n.saves(Output) {
		input{Variable: n.out}.check(n.fn.Name())
	}
}

// checkVersions panics with a [*ModifiedError] if what the function reads was written
// since its first run: the operations in it would compute something else.
func (c *checkpoint) checkVersions() {
	for _, r := range c.reads {
		r.check(r.op + " within Checkpoint")
	}
}

// saveGradients replaces the inputs of n that are gradients, and that its backward
// reads, by copies: the pass may write a gradient before it comes to n.
func (s *state) saveGradients(n *node) error {
	for j, x := range n.in {
		if !x.grad || !n.saves(j) {
			continue
		}
		t, err := s.alloc(x.t.DType, x.t.Shape)
		kept := x.alias()
		kept.t, kept.mem, kept.node, kept.sink = t, s.made(t.Buf, err), x.node, nil
		n.in[j] = input{Variable: kept}
		if err == nil {
			err = s.dev.Kernels().Copy(s.dev.Compute(), t, x.t)
		}
		if err != nil {
			return fmt.Errorf("a copy of %v: %w", x.Variable, err)
		}
	}
	return nil
}
