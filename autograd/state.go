package autograd

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// state is autograd's state for a device. Only the goroutine that uses the device accesses it, except
// for queue.
type state struct {
	dev device.Device
	stepState
	number  int            // the number of the current step, from 1
	noGrad  int            // the depth of NoGrad calls
	repeats int            // the depth of second runs of checkpointed functions
	nodes   uint64         // the number of nodes made so far
	applied uint64         // the number of operations that were computed, and whose gradients were computed
	passes  uint64         // the number of backward passes started so far
	calls   []*Call        // free Calls
	shapes  []device.Shape // the last result of operands
	holds   []hold         // reads that Compute has not waited for yet
	side    device.Stream  // for the gradients of weights in captured steps; nil before the first one
	counter *counter       // nil unless the program has called Operations
	changes uint64         // counts changes of the leaves that gradients and memory depend on: see stepCapture

	// Memory that belongs to the program and that the garbage collector frees.
	owned int64         // bytes that are not freed yet
	live  int64         // the minimum of owned since collect last ran
	began time.Time     // the start of that collection
	took  time.Duration // the duration of that collection

	mu      sync.Mutex
	queue   []device.Buffer // found unreachable by the garbage collector, not yet freed on the device
	dropped []*variant      // likewise, and not yet closed
}

// stepState is the state that a step changes. A captured step restores it.
type stepState struct {
	scope     *scope // the scope of the next operation's result
	step      *scope // the scope of the current step
	ended     bool   // whether a Backward has ended in the current step
	random    RandomGenerator
	capturing *stepCapture // nil unless the step is being captured
}

type stateKey struct{}

func stateOf(dev device.Device) *state {
	return kernels.Of(dev).Values().Get(stateKey{}, func() any {
		step := &scope{}
		return &state{dev: dev, stepState: stepState{step: step, scope: step}, number: 1}
	}).(*state)
}

// alloc allocates a tensor with undefined content. If the device is out of memory, alloc runs the
// garbage collector and tries again. With an error, the tensor has the type and shape but no memory.
func (s *state) alloc(dt device.DType, shape device.Shape) (device.Tensor, error) {
	s.drain()
	size := shape.Len() * dt.Size()
	buf, err := s.dev.Alloc(size)
	if errors.Is(err, device.ErrOutOfMemory) {
		s.awaitReaders() // releases variables that gradsink.HoldWrites keeps reachable
		s.collect()
		buf, err = s.dev.Alloc(size)
	}
	if err != nil {
		return device.Tensor{DType: dt, Shape: shape}, err
	}
	return device.NewTensor(buf, dt, shape...), nil
}

// drain frees the memory that the garbage collector found unreachable.
func (s *state) drain() {
	s.mu.Lock()
	queue, dropped := s.queue, s.dropped
	s.queue, s.dropped = nil, nil
	s.mu.Unlock()
	for _, v := range dropped {
		v.Close() // the error can be ignored: the device returns it again from its next call
	}
	for _, b := range queue {
		s.owned -= int64(b.Len())
		s.dev.Free(b)
	}
	s.live = min(s.live, s.owned)
}

// collectAfter and collectAtLatest bound how far the program's device memory may grow before autograd runs the
// garbage collector. collectAfter, the minimum heap size of Go's collector, applies if the last collection took less
// than 1/collectShare of the time since it started. Otherwise collectAtLatest applies. A collection
// takes about a millisecond, as long as a step of a small model.
const (
	collectAfter    = 4 << 20
	collectAtLatest = 64 << 20
	collectShare    = 50
)

// addToProgram makes b belong to the program, so the garbage collector frees it. The collector does
// not see how much device memory a small handle keeps alive. So addToProgram runs it when the unfreed
// memory has doubled since the last run, as Go does for its heap. Unreachable memory is then at most
// as large as reachable memory, or as the bounds above.
func (s *state) addToProgram(b *block) {
	b.cleanup = runtime.AddCleanup(b, s.enqueue, b.buf)
	b.scope = nil
	s.owned += int64(b.buf.Len())
	grown := s.owned - s.live
	if grown > max(collectAtLatest, s.live) || grown > max(collectAfter, s.live) && time.Since(s.began) > collectShare*s.took {
		s.collect()
	}
}

// enqueue runs on a goroutine of the garbage collector, which must not call the device.
func (s *state) enqueue(b device.Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, b)
}

// collect runs the garbage collector and frees the memory that it finds. Clean-ups run some time after
// a collection. The clean-up of a sentinel object tells collect that they run.
func (s *state) collect() {
	s.began = time.Now()
	ran := make(chan struct{})
	runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, ran)
	runtime.GC()
	select {
	case <-ran:
	case <-time.After(100 * time.Millisecond):
	}
	s.drain()
	s.live, s.took = s.owned, time.Since(s.began)
}
