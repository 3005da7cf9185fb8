// Package capture captures a training step so that it can be replayed. A capture has two parts. The device's part is a
// graph of the work that the step enqueues. The host's part is a list of functions, which the layers above the device
// add while the step is captured: they do what the layer's host code does in each step. A replay calls these functions
// and launches the graph between them.
//
// A layer that is about to change its state on the host asks [Of] whether a step is being captured. If
// so, it changes nothing, because the captured work has not run, and adds:
//
//   - a guard, for each condition that its decisions depend on and that may change in a later step;
//   - words, for each number that the host passes to a kernel and that changes from step to step. Each replay copies
//     the number to device memory, where the kernel reads it;
//   - functions that do what the layer does before and after the work of a step is enqueued (Before, After). A function
//     added by After may wait for the device, for example for the outcome of the step.
//
// A layer that cannot be captured calls Refuse. A layer that cannot be captured yet calls NotYet.
package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/profile"
)

// Step is a training step that is being captured, or was. Only the goroutine that uses the device uses it, except for
// Revoke.
type Step struct {
	dev device.Device

	mu          sync.Mutex
	graph       kernels.Graph // nil until the step is captured
	revoked     error         // why the step must not be replayed; nil: it may be
	isLaunching bool          // the graph is being launched, which may wait for the device; then launch frees a revoked graph

	guards   []func() bool
	required []any // the keys of RequireOnce
	before   []func() error
	launched []func()
	after    []func(err error) error
	ended    []func()
	closed   []func()
	words    []*words
	blocks   []*block
	reason   error // why the step cannot be captured

	// Scaled holds what package amp passes to the optimizer during a scaled step; nil at other times.
	Scaled *ScaledStep
}

// words are numbers of a step in a block.
type words struct {
	key  any
	at   device.Tensor
	host []int64
	fill func(bits []int64)
}

// block is memory for words.
type block struct {
	mem    device.Buffer
	host   []int64
	copied []int64 // what was copied to the device last
	used   int     // the number of words in use
}

// blockWords is the number of words in a block.
const blockWords = 1024

// wordSize is the size of a word in bytes.
const wordSize = 8

// NotYetError is the error of a step that cannot be captured this time, for example because this step
// makes state that later steps only use. The step then runs uncaptured, and the next step is captured.
type NotYetError struct{ Reason string }

func (e *NotYetError) Error() string { return "the step cannot be captured yet: " + e.Reason }

// RefusedError is the error of a step that can never be captured.
type RefusedError struct{ Reason error }

func (e *RefusedError) Error() string { return "the step cannot be captured: " + e.Reason.Error() }

// Unwrap returns the reason, which may be the error of a process group or of the device.
func (e *RefusedError) Unwrap() error { return e.Reason }

// NotLaunchedError is the error of a replay whose work was not enqueued, because a function added by
// Before failed, or because the capture was revoked.
type NotLaunchedError struct{ Err error }

func (e *NotLaunchedError) Error() string {
	return "the captured step was not launched: " + e.Err.Error()
}

// Unwrap returns the error of the function.
func (e *NotLaunchedError) Unwrap() error { return e.Err }

// ScaledStep says how the replays of a captured step of an optimizer take the gradients of a scaled loss.
type ScaledStep struct {
	Scale    func() float64        // the scale of the replay
	Conclude func(err error) error // takes the outcome of the optimizer's step, and returns the error of the replay
}

// current holds the step that is being captured on a device.
type current struct {
	r  *Step
	mu sync.RWMutex // see Guard
}

type currentKey struct{}

func currentOf(dev device.Device) *current {
	return kernels.Of(dev).Values().Get(currentKey{}, func() any { return &current{} }).(*current)
}

// Of returns the step on dev that the calling goroutine is capturing, or nil.
func Of(dev device.Device) *Step {
	if d, ok := dev.(kernels.Capturer); !ok || !d.Capturing() {
		return nil
	}
	return currentOf(dev).r
}

// Guard returns the lock that Capture holds while it captures a step on dev. Another goroutine must hold it for reading
// while it enqueues work, so that the capture does not take in that work.
func Guard(dev device.Device) *sync.RWMutex { return &currentOf(dev).mu }

// IsCapturable reports whether an optimizer takes part in captures by itself. The method Capturable of such an
// optimizer returns the optimizer. A type that embeds one inherits the method, which then returns the embedded
// optimizer, so the type is not capturable.
func IsCapturable(optimizer any) bool {
	r, ok := optimizer.(interface{ Capturable() any })
	return ok && r.Capturable() == optimizer
}

// Capture calls the function step and returns a capture of it. The device has not run the captured work then. If like is
// not nil, the new capture shares the memory of the capture like: see [kernels.Capturer]. If the step cannot be captured,
// Capture returns a [*RefusedError] or a [*NotYetError]. After an error of the step or of the device, a later capture may
// succeed.
func Capture(ctx context.Context, dev device.Device, like *Step, step func() error) (*Step, error) {
	r := &Step{dev: dev}
	var shared kernels.Graph
	if like != nil {
		shared = like.graph
	}
	c := currentOf(dev)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r = r
	defer func() {
		c.r = nil
		if r.graph == nil {
			r.release()
		}
	}()
	graph, err := dev.(kernels.Capturer).Capture(ctx, shared, func() (err error) {
		defer func() {
			for _, f := range slices.Backward(r.ended) {
				f()
			}
			if r.reason != nil {
				err = r.reason
			}
		}()
		return step()
	})
	if errors.As(err, new(*kernels.CaptureError)) {
		err = &RefusedError{err}
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.graph = graph
	err = r.revoked
	r.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Refuse makes Capture fail with a [*RefusedError], and returns it. The reason is as for [fmt.Errorf].
func (r *Step) Refuse(reason string, args ...any) error {
	return r.Fail(&RefusedError{fmt.Errorf(reason, args...)})
}

// NotYet makes Capture fail with a [*NotYetError], and returns it.
func (r *Step) NotYet(reason string, args ...any) error {
	return r.Fail(&NotYetError{fmt.Sprintf(reason, args...)})
}

// Fail makes Capture fail with err, and returns it.
func (r *Step) Fail(err error) error {
	if r.reason == nil {
		r.reason = err
	}
	return err
}

// Require adds a guard: the capture may be replayed only while guard returns true.
func (r *Step) Require(guard func() bool) { r.guards = append(r.guards, guard) }

// RequireOnce is Require, unless it was called with the same key before.
func (r *Step) RequireOnce(key any, guard func() bool) {
	if !slices.Contains(r.required, key) {
		r.required = append(r.required, key)
		r.Require(guard)
	}
}

// Before adds a function that a replay calls before its work is enqueued. If f returns an error, the replay
// enqueues nothing, and ends with a [*NotLaunchedError].
func (r *Step) Before(f func() error) { r.before = append(r.before, f) }

// Launched adds a function that a replay calls as soon as its work is enqueued, to enqueue more work after it. The
// function runs before the functions added by After, because they may wait. It is not called if the launch fails.
func (r *Step) Launched(f func()) { r.launched = append(r.launched, f) }

// After adds a function that a replay calls when its work is enqueued, or when enqueueing failed with err. err is a
// [*NotLaunchedError] if nothing was enqueued. f may be called even if a function added by Before was not called.
func (r *Step) After(f func(err error) error) { r.after = append(r.after, f) }

// AtEnd adds a function that Capture calls when the step has returned or panicked, whether or not the step can be
// captured. The function undoes what the layer has changed on the host. It may still capture work and call Refuse. The
// functions are called in reverse order, as deferred functions are.
func (r *Step) AtEnd(f func()) { r.ended = append(r.ended, f) }

// Undo makes the end of the capture restore the value that *state has now.
func Undo[T any](r *Step, state *T) {
	before := *state
	r.AtEnd(func() { *state = before })
}

// Replay makes the step's change of *state part of the replays. The end of the capture restores the value that *state
// has now. Each launched replay sets *state to the value that the captured step gave it.
func Replay[T any](r *Step, state *T) {
	before, after := *state, *state
	r.AtEnd(func() { after, *state = *state, before })
	r.After(func(err error) error {
		if err == nil {
			*state = after
		}
		return nil
	})
}

// Words returns n words in device memory, of 8 bytes each, as a tensor of dt. Before each replay fill
// writes their bits. Calls with the same key, which must agree in n and dt, return the same words. If
// there is no memory, Capture fails.
func (r *Step) Words(key any, dt device.DType, n int, fill func(bits []int64)) device.Tensor {
	for _, w := range r.words {
		if w.key == key {
			return w.at
		}
	}
	var b *block
	if last := len(r.blocks) - 1; last >= 0 && r.blocks[last].used+n <= blockWords {
		b = r.blocks[last]
	} else {
		// The memory is outside the graph: the step may have used and freed any memory of the graph before, and a launch
		// would overwrite words there.
		mem, err := r.dev.(kernels.Capturer).AllocOutside(max(blockWords, n) * wordSize)
		if err != nil {
			r.Fail(err)
			return device.Tensor{}
		}
		b = &block{mem: mem, host: make([]int64, max(blockWords, n))}
		r.blocks = append(r.blocks, b)
	}
	w := &words{key: key, host: b.host[b.used : b.used+n], fill: fill}
	w.at = device.NewTensor(b.mem.Slice(b.used*wordSize, n*wordSize), dt, n)
	b.used += n
	r.words = append(r.words, w)
	return w.at
}

// Fits reports whether all guards hold, so that a replay does what the step would do now.
func (r *Step) Fits() bool {
	return !slices.ContainsFunc(r.guards, func(guard func() bool) bool { return !guard() })
}

// Replay runs the step. All functions added by After are called, even if one returns an error.
func (r *Step) Replay() error {
	err := r.prepare()
	if err != nil {
		err = &NotLaunchedError{err}
	} else if err = r.launch(); err == nil {
		for _, f := range r.launched {
			f()
		}
	}
	result := err
	for _, f := range r.after {
		switch e := f(err); {
		case e == nil:
		case result == nil || errors.Is(e, result):
			result = e
		default:
			result = errors.Join(result, e)
		}
	}
	return result
}

// prepare calls the functions added by Before, and enqueues the copies of the words.
func (r *Step) prepare() error {
	for _, f := range r.before {
		if err := f(); err != nil {
			return err
		}
	}
	for _, w := range r.words {
		w.fill(w.host)
	}
	for _, b := range r.blocks {
		if err := b.copyIn(r.dev); err != nil {
			return err
		}
	}
	return nil
}

// launch enqueues the work of a step.
func (r *Step) launch() error {
	r.mu.Lock()
	if r.revoked != nil {
		defer r.mu.Unlock()
		return &NotLaunchedError{r.revoked}
	}
	r.isLaunching = true
	r.mu.Unlock()
	err := r.launchGraph()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isLaunching = false
	if r.revoked != nil {
		err = errors.Join(err, r.graph.Revoke())
	}
	return err
}

// launchGraph launches the graph. In a trace it is one span, because its work has no events.
func (r *Step) launchGraph() error {
	trace, compute := profile.Of(r.dev), r.dev.Compute()
	if !trace.On() {
		return r.graph.Launch()
	}
	begin := compute.Record()
	err := r.graph.Launch()
	trace.Add(profile.Span{Track: profile.Compute, Name: "captured step", Begin: begin, End: compute.Record()})
	return err
}

// copyIn enqueues a copy of the words to the device, if they have changed.
func (b *block) copyIn(dev device.Device) error {
	now := b.host[:b.used]
	if slices.Equal(now, b.copied) {
		return nil
	}
	host := device.HostTensor(now, device.Int64).Buf
	if err := dev.CopyIn(dev.Compute(), b.mem.Slice(0, host.Len()), host.Host()); err != nil {
		b.copied = b.copied[:0] // unknown
		return err
	}
	b.copied = append(b.copied[:0], now...)
	return nil
}

// Revoke makes later replays fail with the error why, and frees the graph on the device. It is called when
// something that the graph refers to ends. Launches that were enqueued before still run. Any goroutine may
// call Revoke. Revoke does not wait.
func (r *Step) Revoke(why error) error {
	r.mu.Lock()
	if r.revoked == nil {
		r.revoked = why
	}
	graph := r.graph
	if r.isLaunching {
		graph = nil
	}
	r.mu.Unlock()
	if graph == nil {
		return nil
	}
	return graph.Revoke()
}

// AtClose adds a function that Close calls first. If Capture fails, it calls the function too.
func (r *Step) AtClose(f func()) { r.closed = append(r.closed, f) }

// Close frees the graph and the device memory of the step's words.
func (r *Step) Close() error {
	r.release()
	return r.graph.Close()
}

// release calls the functions that AtClose added, and frees the device memory of the step's words.
func (r *Step) release() {
	for _, f := range r.closed {
		f()
	}
	for _, b := range r.blocks {
		r.dev.Free(b.mem)
	}
	r.blocks = nil
}
