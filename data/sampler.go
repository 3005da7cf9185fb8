package data

import (
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
)

// LastBatch says what happens to the samples that do not fill an epoch's last global
// batch.
type LastBatch uint8

const (
	// Pad divides them equally. Where they do not divide, the first samples of
	// the epoch are given again, fewer than there are ranks. Every rank makes
	// the same number of steps. This is PyTorch's DistributedSampler.
	Pad LastBatch = iota
	// Drop leaves them out.
	Drop
	// Uneven gives each sample once. The last batches of two ranks may differ
	// by one sample, and the last ranks may have none and make one step less:
	// for evaluations, and for training within ddp's Join.
	Uneven
)

// A Position is how far a run has come: Sample samples, of all ranks together,
// of the order of an epoch. It can be saved as JSON.
type Position struct {
	Epoch  int `json:"epoch"`
	Sample int `json:"sample"`
}

// A Sampler divides the samples of a data set among ranks, epoch by epoch. It
// holds no state.
type Sampler struct {
	Len        int // samples of the data set
	Rank, Size int // this rank, of how many
	Batch      int // samples for each rank in a step
	Shuffle    bool
	Seed       uint64 // of the order, if Shuffle
	LastBatch  LastBatch
}

// A Share is one rank's part of a global batch.
type Share struct {
	// Indices are the numbers of the samples in the data set.
	Indices []int
	// Repeats is how many of them, the last ones, the epoch has given before.
	Repeats int
	// After is the position behind the global batch.
	After Position
}

// Check returns why no epoch is possible, or nil.
func (s Sampler) Check() error {
	switch {
	case s.Batch < 1:
		return fmt.Errorf("data: batches of %d samples, want at least 1", s.Batch)
	case s.Size < 1 || s.Rank < 0 || s.Rank >= s.Size:
		return fmt.Errorf("data: rank %d of %d", s.Rank, s.Size)
	case s.Len < s.Size:
		return fmt.Errorf("data: fewer samples (%d) than ranks (%d)", s.Len, s.Size)
	case s.LastBatch == Drop && s.Len/s.Batch < s.Size:
		return fmt.Errorf("data: %d samples do not fill one batch of %d for each of %d ranks, and the rest is dropped", s.Len, s.Batch, s.Size)
	}
	return nil
}

// Steps is the number of global batches of an epoch. With Uneven, the last one may have
// no samples for some ranks.
func (s Sampler) Steps() int {
	global := s.Batch * s.Size
	if s.LastBatch == Drop {
		return s.Len / global
	}
	return (s.Len + global - 1) / global
}

// Order is the order of an epoch's samples: their numbers, shuffled by
// Fisher–Yates with the generator PCG, seeded with Seed and the epoch.
func (s Sampler) Order(epoch int) []int {
	order := make([]int, s.Len)
	for i := range order {
		order[i] = i
	}
	if !s.Shuffle {
		return order
	}
	random := rand.NewPCG(s.Seed, uint64(epoch))
	for i := s.Len - 1; i > 0; i-- {
		// A random number below i+1; the bias is below 2^-32 for 2^32 samples.
		j, _ := bits.Mul64(random.Uint64(), uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}

// Shares are this rank's parts of the global batches from a position to the end
// of its epoch. The indices belong to the caller.
func (s Sampler) Shares(from Position) iter.Seq[Share] {
	return func(yield func(Share) bool) {
		order := s.Order(from.Epoch)
		for at := from.Sample; at < s.Len; {
			global := min(s.Len-at, s.Batch*s.Size)
			if global < s.Batch*s.Size && s.LastBatch == Drop {
				return
			}
			share := s.share(order, at, global)
			at += global
			share.After = Position{Epoch: from.Epoch, Sample: at}
			if len(share.Indices) > 0 && !yield(share) {
				return
			}
		}
	}
}

// share is this rank's part of the global samples of order from at on.
func (s Sampler) share(order []int, at, global int) Share {
	each, more := global/s.Size, global%s.Size
	if s.LastBatch == Uneven {
		// The first ranks take one sample more.
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
