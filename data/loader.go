package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// A Group is the subset of *comm.ProcessGroup that a Loader uses. Rank and Size may change between epochs.
type Group interface {
	Rank() int
	Size() int
	Device() device.Device
}

// LoaderOptions configure a [Loader]. Batch, GlobalBatch, Shuffle, Seed, LastBatch and the length of the data set must
// be the same on all ranks. Otherwise some samples are used twice and others never. train.Run checks this.
type LoaderOptions struct {
	// Batch is the number of samples per rank and step; default 1. With GlobalBatch, it is the largest number of
	// samples in a micro-batch; default GlobalBatch.
	Batch int
	// GlobalBatch is the number of samples of all ranks in a step, for any number of ranks from 1 to GlobalBatch. It
	// is divided evenly among them, and a rank gets its part in micro-batches. The loop weights their losses by
	// Share.Weight, and calls the optimizer's Step after the one with Share.EndsStep. 0: Batch per rank.
	GlobalBatch int
	Shuffle     bool
	Seed        uint64 // the seed of the order; only with Shuffle
	LastBatch   LastBatch
	Workers     int // goroutines that read samples; default 2
	Ahead       int // batches that are read ahead; default 2
}

// A Loader yields one rank's batches on its device. Only the goroutine that uses the device may use the Loader.
type Loader struct {
	set      Dataset
	group    Group
	dev      device.Device
	sampler  Sampler // without Rank and Size
	workers  int
	ahead    int
	resume   Position
	position Position
}

// A Batch is one rank's part of a global batch, or a micro-batch of it: see [Share]. It is valid until the next
// iteration. Using it later, for example in a backward pass, panics with an [*autograd.FreedError].
type Batch struct {
	// Vars are the fields of the samples on the device, in the data set's order. The first axis indexes the samples.
	Vars []*autograd.Variable
	Share
}

// NewLoader returns a loader for the calling rank of group. It returns an error if the options are
// invalid for the data set. Each epoch is divided among the ranks that the group has when its loop begins.
func NewLoader(set Dataset, group Group, opts *LoaderOptions) (*Loader, error) {
	if set == nil || group == nil {
		return nil, fmt.Errorf("data: the data set is set: %v, the process group: %v; want both, the group from comm.Init even for a single process", set != nil, group != nil)
	}
	o := *cmp.Or(opts, &LoaderOptions{})
	l := &Loader{
		set:     set,
		group:   group,
		dev:     group.Device(),
		sampler: Sampler{Len: set.Len(), Batch: cmp.Or(o.Batch, o.GlobalBatch, 1), GlobalBatch: o.GlobalBatch, Shuffle: o.Shuffle, Seed: o.Seed, LastBatch: o.LastBatch},
		workers: cmp.Or(o.Workers, 2),
		ahead:   cmp.Or(o.Ahead, 2),
	}
	l.resume = l.sampler.Begin(0)
	l.position = l.resume
	if l.workers < 0 || l.ahead < 0 {
		return nil, fmt.Errorf("data: Workers %d and Ahead %d, want at least 1 of each", l.workers, l.ahead)
	}
	if len(set.Fields()) == 0 {
		return nil, errors.New("data: the samples have no fields, want at least one")
	}
	return l, l.Sampler().check()
}

// Sampler returns the loader's sampler, for the rank and the size that the group has now.
func (l *Loader) Sampler() Sampler {
	s := l.sampler
	s.Rank, s.Size = l.group.Rank(), l.group.Size()
	return s
}

// IsLabeled reports whether the data set is [Labeled].
func (l *Loader) IsLabeled() bool {
	_, ok := l.set.(Labeled)
	return ok
}

// Steps returns the number of global batches of an epoch.
func (l *Loader) Steps() int { return l.Sampler().StepsFrom(Position{}) }

// Position returns the position After of the batch that the loop has got last. Before the first batch it is the
// position passed to Resume, or the beginning of epoch 0. When an epoch's loop has got all batches, it is the
// beginning of the next epoch. So this loop continues with the first sample after a position p, after Resume(p):
//
//	for epoch := loader.Position().Epoch; epoch < epochs; epoch++ {
//		for batch, err := range loader.Epoch(ctx, epoch) {
func (l *Loader) Position() Position { return l.position }

// Resume makes the epoch of p start at p, after the last batch used. Other epochs start at their first sample. It
// returns an error if p is not a position in the loader's samples: see [Sampler.CheckPosition].
func (l *Loader) Resume(p Position) error {
	if err := l.sampler.CheckPosition(p); err != nil {
		return err
	}
	l.resume, l.position = p, p
	return nil
}

// Epoch yields the batches of an epoch, from the position passed to Resume if it is in this epoch. Errors are as for
// EpochFrom.
func (l *Loader) Epoch(ctx context.Context, epoch int) iter.Seq2[*Batch, error] {
	if l.resume.Epoch == epoch {
		return l.EpochFrom(ctx, l.resume)
	}
	return l.EpochFrom(ctx, Position{Epoch: epoch})
}

// EpochFrom yields the batches from a position to the end of its epoch. It ignores the position passed to Resume. It
// yields a nil Batch and an error, and stops, if `from` is not a position in the loader's samples, if there are too few
// samples for the group's ranks, if reading fails, if the device fails or if ctx ends.
func (l *Loader) EpochFrom(ctx context.Context, from Position) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		s := l.Sampler()
		if err := cmp.Or(s.check(), s.CheckPosition(from)); err != nil {
			yield(nil, err)
			return
		}
		p, err := l.open(ctx, s, from)
		if err == nil {
			err = func() (err error) {
				// Deferred, because the loop's body may panic or call runtime.Goexit.
				defer func() { err = errors.Join(err, p.close(ctx)) }()
				return p.run(ctx, yield)
			}()
		}
		if err == nil {
			l.position = s.Begin(from.Epoch + 1)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// errStopped reports that the training loop ended early.
var errStopped = errors.New("the loop ended")

// A pipeline reads one epoch. Its slots form a ring: workers fill them in order, and the training loop
// empties them in order.
type pipeline struct {
	*Loader
	samples int // the most samples in a batch
	shares  func() (Share, bool)
	stop    func() // ends the iteration over shares
	slots   []*slot
	jobs    chan *slot
	wg      sync.WaitGroup
	stream  device.Stream // stream for copies; nil if the host can write to the device's memory
}

// A slot is the memory of one batch. A worker owns the slot from the time at which it is sent to the channel jobs
// until its channel ready receives a value. Otherwise the training loop owns it.
type slot struct {
	host   []device.Buffer // one for each field
	device []device.Buffer // the same as host if the host can address the device's memory
	copied device.Event    // the event after the copy of the last batch; nil before the first copy
	used   device.Event    // the event after the kernels that the loop enqueued for the last batch
	share  Share
	ready  chan error
}

// open allocates the slots and starts the workers. The caller must close the pipeline unless there is an error.
func (l *Loader) open(ctx context.Context, s Sampler, from Position) (_ *pipeline, err error) {
	p := &pipeline{Loader: l, samples: min(s.Batch, s.largest(s.perStep())), jobs: make(chan *slot, l.ahead+1)}
	var labels func(i int) int
	if set, ok := l.set.(Labeled); ok {
		labels = set.Labels
	}
	p.shares, p.stop = iter.Pull(s.shares(from, labels))
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(ctx))
		}
	}()
	for range l.ahead + 1 {
		s := &slot{ready: make(chan error, 1)}
		p.slots = append(p.slots, s)
		if err := p.alloc(s); err != nil {
			return nil, fmt.Errorf("data: allocating memory for a batch of %d samples: %w", p.samples, err)
		}
	}
	if s := p.slots[0]; s.device[0].Host() == nil {
		if p.stream, err = l.dev.NewStream(false); err != nil {
			return nil, err
		}
		// The last step of the previous epoch may still use the loader's memory on Compute.
		if err := p.stream.WaitFor(l.dev.Compute().Mark()); err != nil {
			return nil, err
		}
	}
	for range l.workers {
		p.wg.Go(p.work)
	}
	return p, nil
}

func (p *pipeline) alloc(s *slot) error {
	for _, field := range p.set.Fields() {
		bytes := p.samples * field.Shape.Len() * field.DType.Size()
		buf, err := p.dev.Alloc(bytes)
		if err != nil {
			return err
		}
		s.device = append(s.device, buf)
		if buf.Host() == nil {
			if buf, err = p.dev.AllocHost(bytes); err != nil {
				return err
			}
		}
		s.host = append(s.host, buf)
	}
	return nil
}

// work reads batches until jobs is closed.
func (p *pipeline) work() {
	for s := range p.jobs {
		p.read(s)
	}
}

// errGoexit reports a Read that called runtime.Goexit.
var errGoexit = errors.New("data: Read called runtime.Goexit, as testing's FailNow does")

// read reads the batch of s.
func (p *pipeline) read(s *slot) {
	err := errGoexit
	defer func() {
		if r := recover(); r != nil {
			panic(r) // this ends the process; the loop must not end first with an error
		}
		s.ready <- err
	}()
	err = p.set.Read(s.share.Indices, p.tensors(s.host, s.share.Indices))
}

// tensors returns the samples of a batch, which are in buffers.
func (p *pipeline) tensors(buffers []device.Buffer, indices []int) []device.Tensor {
	out := make([]device.Tensor, len(buffers))
	for f, field := range fieldsOf(p.set, indices) {
		out[f] = device.NewTensor(buffers[f], field.DType, append(device.Shape{len(indices)}, field.Shape...)...)
	}
	return out
}

// run yields the batches. It returns errStopped if yield returned false.
func (p *pipeline) run(ctx context.Context, yield func(*Batch, error) bool) error {
	for _, s := range p.slots[:p.ahead] {
		if err := p.request(ctx, s); err != nil {
			return err
		}
	}
	for i := 0; ; i++ {
		// A worker fills the previous slot while the loop uses this one.
		if err := p.request(ctx, p.slots[(i+p.ahead)%len(p.slots)]); err != nil {
			return err
		}
		s := p.slots[i%len(p.slots)]
		if len(s.share.Indices) == 0 {
			return nil
		}
		select {
		case err := <-s.ready:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		batch, err := p.deliver(ctx, s)
		if err != nil {
			return err
		}
		p.position = s.share.After
		if !batch.use(yield) {
			return errStopped
		}
		s.used = p.dev.Compute().Mark()
	}
}

// use yields the batch, and then invalidates it, because its memory is freed or reused.
func (b *Batch) use(yield func(*Batch, error) bool) bool {
	defer func() {
		for _, v := range b.Vars {
			v.Expire("when the loop had ended with its batch")
		}
	}()
	return yield(b, nil)
}

// request passes s to a worker to read the next share, if there is one.
func (p *pipeline) request(ctx context.Context, s *slot) error {
	s.share, _ = p.shares()
	if len(s.share.Indices) == 0 {
		return nil
	}
	if s.copied != nil { // wait until the copy has read the host memory
		if err := s.copied.Sync(ctx); err != nil {
			return err
		}
	}
	p.jobs <- s // never blocks: jobs has capacity for every slot
	return nil
}

// deliver returns the batch in s, on the device.
func (p *pipeline) deliver(ctx context.Context, s *slot) (*Batch, error) {
	onDevice := p.tensors(s.device, s.share.Indices)
	if p.stream != nil {
		if s.used != nil {
			if err := p.stream.WaitFor(s.used); err != nil {
				return nil, err
			}
		}
		for f, t := range onDevice {
			if err := p.dev.Copy(p.stream, t.Buf.Slice(0, t.Bytes()), s.host[f].Slice(0, t.Bytes())); err != nil {
				return nil, err
			}
		}
		s.copied = p.stream.Mark()
		if err := p.dev.Compute().WaitFor(s.copied); err != nil {
			return nil, err
		}
	}
	b := &Batch{Share: s.share}
	for _, t := range onDevice {
		b.Vars = append(b.Vars, autograd.FromTensor(p.dev, t))
	}
	return b, nil
}

// closeTimeout bounds the wait for an epoch's copies at its end, even if ctx has ended.
const closeTimeout = 10 * time.Second

// close stops the workers and frees all memory, except memory that a copy may still use.
func (p *pipeline) close(ctx context.Context) error {
	p.stop()
	close(p.jobs)
	p.wg.Wait()
	if p.stream != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		defer p.stream.Close()
		if err := p.stream.Sync(ctx); err != nil {
			return fmt.Errorf("data: copies to %v: %w", p.dev, err)
		}
	}
	for _, s := range p.slots {
		for f, buf := range s.device {
			p.dev.Free(buf)
			if f < len(s.host) && buf.Host() == nil {
				p.dev.Free(s.host[f])
			}
		}
	}
	return nil
}
