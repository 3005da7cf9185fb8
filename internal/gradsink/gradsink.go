// Package gradsink holds the interfaces of autograd that are internal to this module. A package that implements
// Sink provides the memory of gradients, as ddp does with its buckets. A package that implements Source provides the
// values of variables, as ddp/zero does with gathered parameters. The package also lets streams other than the compute
// stream read variables.
package gradsink

import "github.com/goddp/goddp/device"

// Sink owns the memory of a leaf's gradient instead of autograd. A backward pass calls it on Backward's
// goroutine for each leaf that the pass reaches, in this order: Settle and Grad, before the first write; Scale,
// before the last write; Ready, after the last write. A pass that fails may stop after any of these calls.
//
// A pass may reach the leaf without passing an autograd.Observer that belongs to the sink. The pass then calls
// the same methods.
type Sink interface {
	// Grad returns the memory of the gradient, as a tensor of the leaf's shape. It may have another
	// floating-point type than the leaf; the pass converts gradients to that type and adds them up in it. After
	// the call the leaf's State is not Unknown.
	Grad() device.Tensor
	// Settle makes the compute stream wait until the gradient is as the last pass left it. It is called before
	// each use of the memory.
	Settle()
	// Scale returns a factor for the last write of this pass. It multiplies the whole gradient,
	// including the part that earlier passes wrote. 1 changes nothing.
	Scale() float64
	// Ready is called after this pass's last write was enqueued. The write is done at event e.
	Ready(e device.Event)

	// Pending reports whether it is still unknown whether an optimizer may use the gradient.
	// Err then may wait.
	Pending() bool
	// Err returns nil if an optimizer may use the gradient. A wait within Err has a deadline. If an
	// error matches [device.ErrSkipped], the flags of Skip report the same failure on the device.
	Err() error
	// Skip returns bytes in device memory. If one of them is not zero, the device skips the update
	// with this gradient. The zero Tensor stands for no bytes.
	Skip() device.Tensor
}

// Source fills the memory of variables before they are read, as package ddp/zero does with parameters that are divided
// among the ranks. A Source belongs to memory, so all handles to it and all views of it have the same Source. Both
// methods are called on the goroutine that uses the device.
type Source interface {
	// Use makes the compute stream wait until the memory holds the values. It is called before an operation reads the
	// memory: in its forward pass and, if it saves the variable, in its backward pass. The memory must keep the values
	// until Use is called with another number op, which counts the operations in both passes. isTaped says that
	// the operation is not within NoGrad. The error becomes that of the operation.
	Use(op uint64, isTaped bool) error
	// Read is called before a read or a write of the variable that is not an operation, such as a copy to the host. If
	// the memory cannot hold the values then, Read panics. After an error the values are undefined, and the Source's
	// owner reports the error elsewhere.
	Read(variable string)
}

// Divided is a [Sink] that may divide the gradient among ranks, as package ddp/zero does: the gradient is then
// defined only in this rank's part.
type Divided interface{ Divided() bool }

// State says what the memory of a leaf's gradient holds. A leaf and its Sink share one State.
type State struct {
	Content Content
	Err     error // the error of a pass that may have written a part of the gradient; nil once it is overwritten or zeroed
}

// Content is what the memory of a gradient holds.
type Content uint8

const (
	Zeroed  Content = iota // nothing: the next write overwrites
	Unknown                // nothing that this rank wrote; the outcome of the pass tells whether another rank wrote it
	Written                // a gradient, to which the next write adds
)

// Zero discards the gradient. It writes no memory.
func (s *State) Zero() { *s = State{} }

// Write notes that the gradient is about to be written, and reports whether the write must overwrite. The
// content must not be Unknown.
func (s *State) Write() (overwrite bool) {
	overwrite = s.Content != Written
	s.Content = Written
	return overwrite
}

// Leaf is the gradient of a leaf. A nil Leaf stands for a variable that never required a gradient.
type Leaf struct {
	Sink   Sink // nil if autograd owns the memory
	*State      // never nil
}

// Pending reports whether the backward pass that computed the gradient may still turn out to have failed, in
// another process or on a device. An update that respects Skip may be enqueued before that.
func (l *Leaf) Pending() bool { return l != nil && l.Sink != nil && l.Sink.Pending() }

// Skip returns bytes in device memory. If one of them is not zero, the device must not update the leaf with its
// gradient. Skip returns the zero Tensor if there are none.
func (l *Leaf) Skip() device.Tensor {
	if l == nil || l.Sink == nil {
		return device.Tensor{}
	}
	return l.Sink.Skip()
}

// Package autograd sets these functions. A variable is an *autograd.Variable, which this package cannot name.
var (
	// Of returns the gradient of a variable, or nil if the variable never was a leaf that requires one.
	Of func(variable any) *Leaf
	// Set makes s the owner of a variable's gradient, with *state as the gradient's state. If s is nil, autograd
	// becomes the owner. Set drops the present gradient. If s is not nil, Set panics with an *autograd.GraphError
	// unless the variable is a leaf that requires a gradient, or that did before it was frozen.
	Set func(variable any, s Sink, state *State)
	// SetSource makes s the Source of a variable's memory; nil: none.
	SetSource func(variable any, s Source)
	// Rebind makes t, of the variable's length, the memory of the variable, a leaf. Other handles and views keep the
	// present memory, as does a captured step.
	Rebind func(variable any, t device.Tensor)
	// HoldWrites announces that a stream of dev other than Compute reads variables until an event. Later
	// in-place writes to them run after that event: the methods BumpVersion and Free of one of them, and the
	// steps of package optim's optimizers, call AwaitReaders first. Only the goroutine that uses dev may call
	// it.
	HoldWrites func(dev device.Device, variables []any, until device.Event)
	// AwaitReaders makes dev's compute stream wait for the events of all calls of HoldWrites since the last
	// AwaitReaders. The host waits only if a device's streams run work inline. Only the goroutine that uses dev
	// may call it. The error is the device's.
	AwaitReaders func(dev device.Device) error
)
