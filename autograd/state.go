package autograd

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// state is what autograd keeps per device. Only the goroutine that drives the
// device touches it, but for the queue.
type state struct {
	dev     device.Device
	scope   *scope  // where the result of the next operation belongs
	step    *scope  // the implicit one, of the step that is running
	number  int     // of that step, from 1
	ended   bool    // a Backward ended in that step
	noGrad  int     // depth of NoGrad calls
	repeats int     // depth of second runs of checkpointed functions
	nodes   uint64  // nodes made so far
	passes  uint64  // backward passes begun so far
	calls   []*Call // that are not in use
	random  RandomGenerator
	holds   []hold // reads that Compute does not wait for yet

	// Memory that belongs to the program and is freed by the collector.
	owned int64         // bytes of it that were not freed yet
	live  int64         // the least of owned since the collector was last asked to run
	began time.Time     // of that collection
	took  time.Duration // that collection

	mu    sync.Mutex
	queue []device.Buffer // freed by the collector, not yet given back to the device
}

type stateKey struct{}

func stateOf(dev device.Device) *state {
	return kernels.Of(dev).Values().Get(stateKey{}, func() any {
		step := &scope{}
		return &state{dev: dev, step: step, scope: step, number: 1}
	}).(*state)
}

// alloc allocates a tensor, its content undefined. Where the device is out of
// memory, the collector may know of some. With an error, the tensor has the
// type and shape but no memory.
func (s *state) alloc(dt device.DType, shape device.Shape) (device.Tensor, error) {
	s.drain()
	size := shape.Len() * dt.Size()
	buf, err := s.dev.Alloc(size)
	if errors.Is(err, device.ErrOutOfMemory) {
		s.awaitReaders() // what HoldWrites keeps may be collected
		s.collect()
		buf, err = s.dev.Alloc(size)
	}
	if err != nil {
		return device.Tensor{DType: dt, Shape: shape}, err
	}
	return device.NewTensor(buf, dt, shape...), nil
}

// drain gives back to the device what the collector freed.
func (s *state) drain() {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, b := range queue {
		s.owned -= int64(b.Len())
		s.dev.Free(b)
	}
	s.live = min(s.live, s.owned)
}

// When the collector is asked to look for what the program dropped: at a growth of its
// memory of collectAfter if the last collection took less than 1/collectShare of the
// time since it began, and of collectAtLatest in any case. The first is the least at
// which Go's collector runs for its own heap. A collection costs about a millisecond,
// which is a step of a small model.
const (
	collectAfter    = 4 << 20
	collectAtLatest = 64 << 20
	collectShare    = 50
)

// addToScope makes b memory of the program: freed by the collector. Go's collector does not
// see how much device memory a few small handles hold. It is asked to run when the
// memory that is not freed has doubled since it last was, as it does by itself for its
// addToScope heap: what the program has dropped takes no more than what it holds, such as its
// parameters, or than the bounds above.
func (s *state) addToScope(b *block) {
	b.cleanup = runtime.AddCleanup(b, s.enqueue, b.buf)
	b.scope = nil
	s.owned += int64(b.buf.Len())
	grown := s.owned - s.live
	if grown > max(collectAtLatest, s.live) || grown > max(collectAfter, s.live) && time.Since(s.began) > collectShare*s.took {
		s.collect()
	}
}

// enqueue runs on the collector's goroutine, where no device may be called.
func (s *state) enqueue(b device.Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, b)
}

// collect runs the collector and gives back what it found. Clean-ups run some
// time after a collection: a sentinel's tells when they do.
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
