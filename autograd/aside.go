package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
)

// aside computes weight gradients on a second stream, in parallel with the stream Compute, while a step is captured.
// A weight gradient depends only on the gradient of the result and a saved operand, and nothing else in the pass
// depends on it. So it can overlap with the gradients of the layers below, whose kernels do not fill a GPU. In a
// CUDA graph, ordering between streams costs nothing.
type aside struct {
	s       *state
	stream  device.Stream
	release func(device.Buffer) // frees the memory of a gradient
	written map[*node]bool      // the leaves whose gradients the stream has written in this pass
	held    []held              // memory that the stream may still read, in the order of its use
}

// held is memory that Compute may use again after the event `until`.
type held struct {
	until device.Event
	mem   []device.Buffer
}

// aside holds the memory of at most asideLag operations, so that Compute rarely waits. If the latest operations hold
// asideBytes or more, Compute waits for the earlier ones, whose memory is then freed. The wait costs little, because
// kernels on that much memory fill a GPU by themselves.
const (
	asideLag   = 4
	asideBytes = 64 << 20
)

// weighted is a [Function] whose gradients of leaves may be computed on another stream. Each of these gradients
// depends only on operand 0, the gradient of the result and what Prepare computed. Backward must enqueue all work
// on the Call's Stream. If operand 0 has a Source, they are computed on Compute, because after the next operation
// there its memory may have other values.
type weighted interface{ Aside() }

// alone is the number of elements from which the matrix product of a weight's gradient fills a GPU: with tiles of
// 128 × 128 there is a tile for nearly each of an H100's 132 multiprocessors. Such a product runs on Compute, before
// the gradients of the layers below. If it ran in parallel with them, it would finish later, and no multiprocessor
// would be free to reduce the gradient.
const alone = 2 << 20

// fillsGPU reports whether an input of n is a leaf of at least `alone` elements. The matrix product that computes the
// gradient of such a leaf fills a GPU.
func (n *node) fillsGPU() bool {
	return slices.ContainsFunc(n.in, func(v input) bool {
		return v.node != nil && v.node.leaf != nil && v.t.Shape.Len() >= alone
	})
}

// beside returns the stream for weight gradients, or nil if no step is being captured. release frees the memory of a
// gradient.
func (s *state) beside(release func(device.Buffer)) *aside {
	if s.capturing == nil || s.side == nil {
		return nil
	}
	return &aside{s: s, stream: s.side, release: release, written: map[*node]bool{}}
}

// fork makes the stream wait for everything enqueued on Compute so far.
func (a *aside) fork() error {
	return a.stream.WaitFor(a.s.dev.Compute().Mark())
}

// join makes Compute wait for everything enqueued on the stream so far.
func (a *aside) join() error {
	return a.s.dev.Compute().WaitFor(a.stream.Mark())
}

// hold frees memory that the stream may still read, once Compute has waited for those reads.
func (a *aside) hold(mem []device.Buffer) error {
	a.held = append(a.held, held{a.stream.Mark(), mem})
	done := len(a.held) // the number of elements of held that Compute waits for
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

// settle makes Compute wait for all work on the stream, and frees the held memory.
func (a *aside) settle() error {
	if a == nil || len(a.written) == 0 {
		return nil
	}
	err := a.join()
	a.free(len(a.held))
	return err
}
