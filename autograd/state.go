package autograd

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
)

// state is what autograd keeps per device. Only the goroutine that drives the
// device touches it, but for the queue.
type state struct {
	dev    device.Device
	scope  *scope  // where the result of the next operation belongs
	step   *scope  // the implicit one, of the step that is running
	number int     // of that step, from 1
	ended  bool    // a Backward ended in that step
	noGrad int     // depth of NoGrad calls
	nodes  uint64  // nodes made so far
	passes uint64  // backward passes begun so far
	calls  []*Call // that are not in use

	// Memory that belongs to the program and is freed by the collector.
	owned  int64 // bytes of it that were not freed yet
	recent int64 // bytes of it allocated since the collector was last asked to run

	mu    sync.Mutex
	queue []device.Buffer // freed by the collector, not yet given back to the device
}

type stateKey struct{}

func stateOf(dev device.Device) *state {
	return dev.Values().Get(stateKey{}, func() any {
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
}

// collectAfter is how much memory of its own a program may at least allocate
// before the collector is asked to look for what it dropped.
const collectAfter = 64 << 20

// own makes b memory of the program: freed by the collector. Go's collector
// does not see how much device memory a few small handles hold, so it is asked
// to run whenever as much was allocated as there was, which is the collector's
// own rule.
func (s *state) own(b *block) {
	b.cleanup = runtime.AddCleanup(b, s.enqueue, b.buf)
	b.scope = nil
	s.owned += int64(b.buf.Len())
	s.recent += int64(b.buf.Len())
	if s.recent > max(collectAfter, s.owned-s.recent) {
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
	s.recent = 0
	ran := make(chan struct{})
	runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, ran)
	runtime.GC()
	select {
	case <-ran:
	case <-time.After(100 * time.Millisecond):
	}
	s.drain()
}
