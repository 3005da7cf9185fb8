package autograd

import (
	"fmt"
)

// Version returns the number of in-place writes to v's memory that autograd knows of. All handles to
// the same memory ([Variable.Detach], [Reshape]) have the same version.
func (v *Variable) Version() uint64 { return v.mem.version }

// BumpVersion announces an in-place write to v's memory. The caller enqueues the write on the compute
// stream, or ordered after it, when BumpVersion has returned. The write then runs after the reads of
// other streams, such as the copies of package checkpoint. If an operation read v before the write, and its backward computes a
// gradient from v, [Variable.Backward] panics with a [*ModifiedError].
//
// The optimizers, nn.LoadState and ddp call BumpVersion themselves. A program calls it before it
// writes the memory with a kernel, a copy or a collective on [Variable.Tensor], or through memory that
// it shares with the variable ([FromTensor]). Variables that FromTensor made over the same memory have
// separate versions. Gradients need no call, because operations copy the gradients that they save.
func (v *Variable) BumpVersion() {
	v.mem.version++
	if r := v.s.capturing; r != nil {
		mem := v.mem
		r.After(func(error) error { mem.version++; return nil })
	}
	if v.mem.held {
		v.s.awaitReaders() // an error of the device is returned by the write as well
	}
}

// ModifiedError is the panic value of a backward pass that would read an operand or a result that was
// written in place after the operation was applied. The usual cause is an optimizer's Step between a
// forward pass and its Backward. With two optimizers, such as those of a generator and a
// discriminator, call each Backward before the Step that changes values its graph reads, or run the
// forward pass again.
//
// Backward panics before it changes any gradient, and keeps the graph. If a function given to
// [Checkpoint] detects the write in its second run, the pass fails instead.
type ModifiedError struct {
	Op       string // the operation, as in "MatMul"
	Variable string // the variable that was written, with its name if it has one: `variable "0.weight" float32[2 3]`
	Saved    uint64 // its version when the operation was applied
	Now      uint64 // its version at the backward pass
}

func (e *ModifiedError) Error() string {
	return fmt.Sprintf("autograd: the backward of %s needs %s as it was at version %d, and an in-place write, such as an optimizer's Step, has made it version %d: call Backward before the write, or run the forward pass again",
		e.Op, e.Variable, e.Saved, e.Now)
}

// Saver is a [Function] that states which operands its backward reads. Other operands may be written in
// place after the operation was applied. The backward of a Function that is not a Saver counts as
// reading all of them.
type Saver interface {
	Function
	// Saves reports whether Prepare, or Backward for input i, reads c.In[j]. For j = [Output] it
	// reports whether they read c.Out.
	Saves(i, j int) bool
}

// Output denotes the result of an operation: see [Saver].
const Output = -1

// input is an operand of an operation on the tape.
type input struct {
	*Variable
	version uint64 // the memory's version when the operation was applied
}

// check panics with a [*ModifiedError] if x was written since op was applied.
func (x input) check(op string) {
	if now := x.mem.version; now != x.version {
		panic(&ModifiedError{Op: op, Variable: x.String(), Saved: x.version, Now: now})
	}
}

// saves reports whether the backward of n reads input j, or the result for j = Output, in order to
// compute a gradient that is needed, or the result again.
func (n *node) saves(j int) bool {
	if j != Output && n.remakes {
		return true
	}
	f, ok := n.fn.(Saver)
	for i, x := range n.in {
		if x.node != nil && (!ok || f.Saves(i, j)) {
			return true
		}
	}
	return false
}

// checkVersions panics with a [*ModifiedError] if an operand that the backward of n reads was written
// since n was made.
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
	// A result has version 0 when its operation has been applied.
	if n.out.mem.version != 0 && n.saves(Output) {
		input{Variable: n.out}.check(n.fn.Name())
	}
}

// checkVersions panics with a [*ModifiedError] if an operand that the function reads was written since
// its first run: the second run would compute something else.
func (c *checkpoint) checkVersions() {
	for _, r := range c.reads {
		r.check(r.op + " within Checkpoint")
	}
}

// saveGradients replaces inputs of n that are gradients, and that n's backward reads, by copies. The
// pass may write a gradient before it reaches n.
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
