package data

import (
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
)

// LastBatch selects what happens to samples that do not fill an epoch's last global batch.
type LastBatch uint8

const (
	// Pad divides the remaining samples equally among the ranks. If their number is not divisible, it adds
	// the first samples of the epoch, fewer than there are ranks. All ranks have the same number of
	// steps, as with PyTorch's DistributedSampler. With GlobalBatch, it adds samples only for ranks that would
	// have none, and their Weight is 0.
	Pad LastBatch = iota
	// Drop skips the remaining samples.
	Drop
	// Uneven uses each sample once. The last batches of two ranks may differ by one sample, and the last ranks
	// may have no samples and one step less. Use it for evaluations, and for training within ddp's Join.
	Uneven
)

// A Position is a run's progress: all ranks together have used the first Sample samples of the order of
// an epoch. It can be saved as JSON.
type Position struct {
	Epoch  int `json:"epoch"`
	Sample int `json:"sample"`
	// Source determines the order of the samples. The zero Source means that the order was not
	// recorded. Then any sampler whose data set is long enough accepts the position.
	Source Source `json:"source,omitzero"`
}

// A Source determines the order of an epoch's samples.
type Source struct {
	Len     int    `json:"len"` // the number of samples in the data set
	Shuffle bool   `json:"shuffle"`
	Seed    uint64 `json:"seed"` // 0 without Shuffle
}

// describe returns s for messages.
func (s Source) describe() string {
	if !s.Shuffle {
		return fmt.Sprintf("%d samples in their order", s.Len)
	}
	return fmt.Sprintf("%d samples shuffled by seed %d", s.Len, s.Seed)
}

// A Sampler divides the samples of a data set among ranks, epoch by epoch. It is stateless.
type Sampler struct {
	Len        int // the number of samples in the data set
	Rank, Size int // this rank, and the number of ranks
	Batch      int // samples for each rank in a step; with GlobalBatch, the most that it has in a micro-batch
	// GlobalBatch is the number of samples of all ranks in a step; 0: Batch for each rank.
	GlobalBatch int
	Shuffle     bool
	Seed        uint64 // the seed of the order; only with Shuffle
	LastBatch   LastBatch
}

// A Share is one rank's part of a global batch, or with GlobalBatch a micro-batch of that part.
type Share struct {
	// Indices are the indices of the samples in the data set.
	Indices []int
	// Repeats is the number of samples at the end of Indices that the epoch has already used.
	Repeats int
	// After is the position after the global batch. Of a micro-batch that does not end the step, it is the position
	// before the global batch.
	After Position
	// Weight is the factor of the mean loss of the samples. With GlobalBatch, the mean over the ranks of the sums of
	// their weighted losses is the mean loss of the global batch. Otherwise Weight is 1.
	Weight float64
	// Labels is the number of labels of the samples, and LabelWeight is the factor of the sum of the labels' losses. The
	// mean over the ranks of the sums of their losses, weighted so, is the mean loss of all labels of the global batch,
	// or 0 if there are none. Both are 0 unless a loader made the Share from a [Labeled] data set.
	Labels      int
	LabelWeight float64
	// EndsStep is true for the last micro-batch of a step, and always without GlobalBatch.
	EndsStep bool
}

// check returns an error if the sampler's fields are invalid.
func (s Sampler) check() error {
	switch {
	case s.GlobalBatch < 0 || s.GlobalBatch > 0 && s.GlobalBatch < s.Size:
		return fmt.Errorf("data: GlobalBatch is %d, want at least one sample for each of %d ranks, or 0", s.GlobalBatch, s.Size)
	case s.Batch < 1:
		return fmt.Errorf("data: the batch size is %d, want at least 1", s.Batch)
	case s.Size < 1 || s.Rank < 0 || s.Rank >= s.Size:
		return fmt.Errorf("data: rank %d with %d ranks, want 0 <= rank < ranks", s.Rank, s.Size)
	case s.Len < s.Size:
		return fmt.Errorf("data: fewer samples (%d) than ranks (%d)", s.Len, s.Size)
	case s.LastBatch == Drop && s.Len < s.perStep():
		return fmt.Errorf("data: %d samples, want at least a global batch of %d with LastBatch Drop", s.Len, s.perStep())
	}
	return nil
}

// perStep returns the number of samples in a global batch.
func (s Sampler) perStep() int {
	if s.GlobalBatch > 0 {
		return s.GlobalBatch
	}
	return s.Batch * s.Size
}

// largest returns the number of samples of the rank that has most of a global batch.
func (s Sampler) largest(global int) int { return ceilDiv(global, s.Size) }

func ceilDiv(n, by int) int { return (n + by - 1) / by }

// source returns the source of the sampler's order.
func (s Sampler) source() Source {
	if !s.Shuffle {
		return Source{Len: s.Len}
	}
	return Source{s.Len, true, s.Seed}
}

// Begin returns the position before the first sample of an epoch.
func (s Sampler) Begin(epoch int) Position { return Position{Epoch: epoch, Source: s.source()} }

// CheckPosition returns an error if a run cannot resume at p with the sampler. Either p is out of range, or p is a
// position in another order, so that some samples would be used twice and others never.
func (s Sampler) CheckPosition(p Position) error {
	if mine := s.source(); p.Source != (Source{}) && p.Source != mine {
		return fmt.Errorf("data: the saved position (epoch %d, sample %d) is one in %s, but the loader has %s: want the same data set, Shuffle and Seed", p.Epoch, p.Sample, p.Source.describe(), mine.describe())
	}
	if p.Epoch < 0 || p.Sample < 0 || p.Sample > s.Len {
		return fmt.Errorf("data: cannot resume at epoch %d, sample %d: the data set has %d samples", p.Epoch, p.Sample, s.Len)
	}
	return nil
}

// StepsFrom returns the number of global batches from a position to the end of its epoch. With Uneven, some ranks may
// have no samples in the last one.
func (s Sampler) StepsFrom(p Position) int {
	left := s.Len - p.Sample
	if s.LastBatch == Drop {
		return left / s.perStep()
	}
	return ceilDiv(left, s.perStep())
}

// order returns the order of an epoch's samples: their indices, shuffled by Fisher–Yates with the generator
// PCG, seeded by Seed and the epoch.
func (s Sampler) order(epoch int) []int {
	order := make([]int, s.Len)
	for i := range order {
		order[i] = i
	}
	if !s.Shuffle {
		return order
	}
	random := rand.NewPCG(s.Seed, uint64(epoch))
	for i := s.Len - 1; i > 0; i-- {
		// j is a random number below i+1. Its bias is below 2^-32 for 2^32 samples.
		j, _ := bits.Mul64(random.Uint64(), uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}

// Shares yields this rank's parts of the global batches from a position to the end of its epoch. The
// caller may keep the indices.
func (s Sampler) Shares(from Position) iter.Seq[Share] { return s.shares(from, nil) }

// shares is Shares, for samples with numbers of labels unless labels is nil.
func (s Sampler) shares(from Position, labels func(i int) int) iter.Seq[Share] {
	count := func(indices []int) (n int) {
		for _, i := range indices {
			n += labels(i)
		}
		return n
	}
	return func(yield func(Share) bool) {
		order := s.order(from.Epoch)
		for at := from.Sample; at < s.Len; {
			global := min(s.Len-at, s.perStep())
			if global < s.perStep() && s.LastBatch == Drop {
				return
			}
			all := 0 // the labels of the global batch
			if labels != nil {
				all = count(order[at:at+global]) + count(order[:s.repeats(global)])
			}
			for _, share := range s.divide(s.share(order, at, global), global) {
				if labels != nil {
					share.Labels = count(share.Indices)
				}
				if all > 0 && share.Weight > 0 {
					share.LabelWeight = float64(s.Size) / float64(all)
				}
				share.After = Position{from.Epoch, at, s.source()}
				if share.EndsStep {
					share.After.Sample += global
				}
				if !yield(share) {
					return
				}
			}
			at += global
		}
	}
}

// repeats returns the number of samples that all ranks together add to a global batch, and that count as others do.
func (s Sampler) repeats(global int) int {
	if s.LastBatch != Pad || s.GlobalBatch > 0 {
		return 0
	}
	return s.largest(global)*s.Size - global
}

// share returns this rank's part of the global batch that starts at position at of order.
func (s Sampler) share(order []int, at, global int) Share {
	each, more := global/s.Size, global%s.Size
	if s.LastBatch == Uneven || s.GlobalBatch > 0 && global >= s.Size {
		// The first ranks get one more sample.
		first := s.Rank*each + min(s.Rank, more)
		if s.Rank < more {
			each++
		}
		return Share{Indices: append([]int(nil), order[at+first:at+first+each]...)}
	}
	if more > 0 {
		each++
	}
	share := Share{Indices: make([]int, each)}
	for i := range share.Indices {
		nth := s.Rank*each + i
		if nth >= global {
			share.Indices[i] = order[nth-global]
			share.Repeats++
			continue
		}
		share.Indices[i] = order[at+nth]
	}
	return share
}

// divide divides a rank's part of a global batch into micro-batches whose sizes differ by at most one. All ranks have
// the same number of them, except that with Batch 1 some may have one less. A part with repeats is never divided.
func (s Sampler) divide(part Share, global int) []Share {
	n := len(part.Indices)
	all := make([]Share, min(n, ceilDiv(s.largest(global), s.Batch)))
	for i := range all {
		first, end := i*n/len(all), (i+1)*n/len(all)
		all[i] = Share{Indices: part.Indices[first:end:end], Repeats: part.Repeats, Weight: 1, EndsStep: i == len(all)-1}
		if s.GlobalBatch > 0 {
			all[i].Weight = float64((end-first-part.Repeats)*s.Size) / float64(global)
		}
	}
	return all
}
