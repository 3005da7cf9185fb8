package main

import (
	"context"
	"math/rand/v2"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/test/internal/compare"
)

// reference is the result of training in a single process.
type reference struct {
	*outcome
	lossGap, parameterGap float64 // the difference that two other orders of the samples make
}

// trainReference trains in a single process, on rank 0; it returns nil on the other ranks. If sums are
// in float32, rank 0 is a group of one; every rank must call trainReference, because all of them take
// part in making that group.
func (r *recipe) trainReference(ctx context.Context, j *job) (*reference, error) {
	var one *comm.ProcessGroup
	if r.sumsInFloat32 {
		var err error
		if one, err = j.Split(ctx, j.Rank(), 0); err != nil {
			return nil, err
		}
		defer one.Close()
	}
	if j.Rank() != 0 {
		return nil, nil
	}
	want, err := r.single(ctx, j, one, nil)
	if err != nil {
		return nil, err
	}
	ref := &reference{outcome: want}
	for _, loss := range want.Losses {
		ref.lossGap = max(ref.lossGap, 0x1p-23*loss) // the resolution of float32
	}
	for seed := range uint64(2) {
		other, err := r.single(ctx, j, one, rand.New(rand.NewPCG(1, seed)))
		if err != nil {
			return nil, err
		}
		ref.lossGap = max(ref.lossGap, maxLossDifference(want.Losses, other.Losses))
		ref.parameterGap = max(ref.parameterGap, compare.Worst(want.final, other.final))
	}
	return ref, nil
}

// bare is a model without ddp: it reduces nothing.
type bare struct{ *network }

func (bare) NoSync(f func() error) error { return f() }

// single trains in one process on the samples of all ranks, in an order that shuffle draws unless it is
// nil. It uses package ddp in the group one, or no ddp if one is nil.
func (r *recipe) single(ctx context.Context, j *job, one *comm.ProcessGroup, shuffle *rand.Rand) (*outcome, error) {
	net, err := r.network(j.Device(), 1)
	if err != nil {
		return nil, err
	}
	t, err := r.trainer(net)
	if err != nil {
		return nil, err
	}
	t.model = bare{net}
	if t.opt, err = r.optimizer(net.Parameters()); err != nil {
		return nil, err
	}
	if one != nil {
		if t.model, err = ddp.New(net, one, &ddp.Options{ReduceDType: device.Float32}); err != nil {
			return nil, err
		}
	}
	for step := range r.steps {
		parts, active := r.parts(step, j.Size())
		if shuffle != nil {
			r.shuffle(parts, shuffle)
		}
		var passes []pass
		for _, p := range parts {
			passes = append(passes, j.pass(r, step, p, 1/float64(len(parts))))
		}
		factor := 1.0
		if !r.dividesByActive {
			factor = float64(active) / float64(j.Size())
		}
		if err := t.step(ctx, step, passes, factor); err != nil {
			return nil, err
		}
	}
	return t.finish(ctx)
}

// parts returns the passes of a step, all of one size, and the number of ranks that have samples. There
// is one pass for all samples, or one for each rank if a pass has its own branch or is rounded.
func (r *recipe) parts(step, ranks int) (parts []part, active int) {
	var all []int
	for rank := range ranks {
		if r.hasSamples(rank, ranks, step) {
			numbers := samplesOf(rank, ranks, step)
			parts, all = append(parts, part{rank, numbers}), append(all, numbers...)
		}
	}
	active = len(parts)
	if r.branch == nil && !r.isRounded() {
		parts = []part{{numbers: all}}
	}
	return parts, active
}

// shuffle changes the order of the samples. If each pass has its own branch, a sample stays in its pass.
func (r *recipe) shuffle(parts []part, random *rand.Rand) {
	swap := func(numbers []int) {
		random.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	}
	if r.branch != nil {
		for _, p := range parts {
			swap(p.numbers)
		}
		return
	}
	var all []int
	for _, p := range parts {
		all = append(all, p.numbers...)
	}
	swap(all)
	for i, p := range parts {
		parts[i].numbers, all = all[:len(p.numbers)], all[len(p.numbers):]
	}
}
