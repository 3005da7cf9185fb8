package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
)

// aside runs the gradients of weights on a stream beside Compute, in a step that is being captured. They
// depend on the gradient of the result and on a saved operand, and nothing in the pass depends on them. So
// they can run beside the gradients of the layers below, whose kernels alone do not fill a GPU. In a graph
// the order among streams costs nothing.
type aside struct {
	s       *state
	stream  device.Stream
	release func(device.Buffer) // frees the memory of a gradient
	written map[*node]bool      // the leaves whose gradients the stream has written in this pass
	held    []held              // memory that the stream may still read, in the order of its use
}

// held is memory that Compute may use again after the event until.
type held struct {
	until device.Event
	mem   []device.Buffer
}

// aside holds the memory of at most asideLag operations, so that Compute rarely waits. If the latest operations
// hold asideBytes or more, Compute waits for those before them, whose memory is then freed. Little is lost by
// that wait, because kernels on so much memory fill a GPU alone.
const (
	asideLag   = 4
	asideBytes = 64 << 20
)

// weighted is a [Function] whose gradients of leaves may be computed on another stream. Each depends on the
// operands, on the gradient of the result and on what Prepare computed alone, and Backward enqueues all its
// work on the Call's Stream.
type weighted interface{ Aside() }

// alone is the number of elements of a weight whose gradient's product fills a GPU: in tiles of 128 × 128 it has one
// for nearly each of an H100's 132 multiprocessors. Such a product runs on Compute, before the gradients of the layers
// below. Beside them it would be final later, and its reduction would find no free multiprocessor to start on.
const alone = 2 << 20

// fillsGPU reports whether the gradient of one of n's weights fills a GPU.
func (n *node) fillsGPU() bool {
	return slices.ContainsFunc(n.in, func(v input) bool {
		return v.node != nil && v.node.leaf != nil && v.t.Shape.Len() >= alone
	})
}

// beside returns the stream for gradients of weights, or nil if no step is being captured. release frees the
// memory of a gradient.
func (s *state) beside(release func(device.Buffer)) *aside {
	if s.capturing == nil || s.side == nil {
		return nil
	}
	return &aside{s: s, stream: s.side, release: release, written: map[*node]bool{}}
}

// fork makes the stream run behind everything that is enqueued on Compute.
func (a *aside) fork() error {
	return a.stream.WaitFor(a.s.dev.Compute().Mark())
}

// join makes Compute run behind everything that is enqueued on the stream.
func (a *aside) join() error {
	return a.s.dev.Compute().WaitFor(a.stream.Mark())
}

// hold frees memory that the stream may still read, once Compute is behind that.
func (a *aside) hold(mem []device.Buffer) error {
	a.held = append(a.held, held{a.stream.Mark(), mem})
	done := len(a.held) // of what is held, the number that Compute waits for
	for bytes := 0; done > 0 && len(a.held)-done < asideLag && bytes < asideBytes; done-- {
		bytes += a.held[done-1].size()
	}
	if done == 0 {
		return nil
	}
	err := a.s.dev.Compute().WaitFor(a.held[done-1].until)
	a.free(done)
	return err
}

// size returns the number of bytes that are held.
func (h held) size() (n int) {
	for _, b := range h.mem {
		n += b.Len()
	}
	return n
}

func (a *aside) free(n int) {
	for _, h := range a.held[:n] {
		for _, b := range h.mem {
			a.release(b)
		}
	}
	a.held = a.held[n:]
}

// settle ends the use of the stream for now: Compute is behind it, and the memory is free.
func (a *aside) settle() error {
	if a == nil || len(a.written) == 0 {
		return nil
	}
	err := a.join()
	a.free(len(a.held))
	return err
}
