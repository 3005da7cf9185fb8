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
	// steps, as with PyTorch's DistributedSampler.
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
	Batch      int // samples for each rank in a step
	Shuffle    bool
	Seed       uint64 // the seed of the order; only with Shuffle
	LastBatch  LastBatch
}

// A Share is one rank's part of a global batch.
type Share struct {
	// Indices are the indices of the samples in the data set.
	Indices []int
	// Repeats is the number of samples at the end of Indices that the epoch has already used.
	Repeats int
	// After is the position after the global batch.
	After Position
}

// check returns an error if the sampler's fields are invalid.
func (s Sampler) check() error {
	switch {
	case s.Batch < 1:
		return fmt.Errorf("data: the batch size is %d, want at least 1", s.Batch)
	case s.Size < 1 || s.Rank < 0 || s.Rank >= s.Size:
		return fmt.Errorf("data: rank %d with %d ranks, want 0 <= rank < ranks", s.Rank, s.Size)
	case s.Len < s.Size:
		return fmt.Errorf("data: fewer samples (%d) than ranks (%d)", s.Len, s.Size)
	case s.LastBatch == Drop && s.Len/s.Batch < s.Size:
		return fmt.Errorf("data: %d samples, want at least one batch of %d for each of %d ranks with LastBatch Drop", s.Len, s.Batch, s.Size)
	}
	return nil
}

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
	global, left := s.Batch*s.Size, s.Len-p.Sample
	if s.LastBatch == Drop {
		return left / global
	}
	return (left + global - 1) / global
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
func (s Sampler) Shares(from Position) iter.Seq[Share] {
	return func(yield func(Share) bool) {
		order := s.order(from.Epoch)
		for at := from.Sample; at < s.Len; {
			global := min(s.Len-at, s.Batch*s.Size)
			if global < s.Batch*s.Size && s.LastBatch == Drop {
				return
			}
			share := s.share(order, at, global)
			at += global
			share.After = Position{from.Epoch, at, s.source()}
			if len(share.Indices) > 0 && !yield(share) {
				return
			}
		}
	}
}

// share returns this rank's part of the global batch that starts at position at of order.
func (s Sampler) share(order []int, at, global int) Share {
	each, more := global/s.Size, global%s.Size
	if s.LastBatch == Uneven {
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
