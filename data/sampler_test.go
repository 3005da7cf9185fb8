package data

import (
	"fmt"
	"slices"
	"testing"
)

// epoch returns each rank's shares from a position on.
func epoch(s Sampler, from Position) [][]Share {
	ranks := make([][]Share, s.Size)
	for r := range ranks {
		s.Rank = r
		ranks[r] = slices.Collect(s.Shares(from))
	}
	return ranks
}

// In an epoch the ranks get every sample once, except for the samples that LastBatch repeats or
// drops.
func TestSamplerGivesEverySampleOnce(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 8, 9, 64, 100, 101} {
		for _, size := range []int{1, 2, 3, 4} {
			for _, batch := range []int{1, 2, 5, 200} {
				for _, tail := range []LastBatch{Pad, Drop, Uneven} {
					for _, shuffle := range []bool{false, true} {
						s := Sampler{Len: n, Size: size, Batch: batch, Shuffle: shuffle, Seed: 3, LastBatch: tail}
						if s.check() != nil {
							continue
						}
						t.Run(fmt.Sprintf("%d/%d/%d/%d/%v", n, size, batch, tail, shuffle), func(t *testing.T) {
							checkEpoch(t, s)
						})
					}
				}
			}
		}
	}
}

func checkEpoch(t *testing.T, s Sampler) {
	seen := map[int]int{}
	repeats, steps := 0, map[int]bool{}
	for rank, shares := range epoch(s, Position{Epoch: 2}) {
		for _, share := range shares {
			if len(share.Indices) > s.Batch {
				t.Errorf("rank %d has %d samples in a step, want at most %d", rank, len(share.Indices), s.Batch)
			}
			repeats += share.Repeats
			for _, i := range share.Indices[:len(share.Indices)-share.Repeats] {
				seen[i]++
			}
		}
		steps[len(shares)] = true
	}
	want := s.Len
	if s.LastBatch == Drop {
		want -= s.Len % (s.Batch * s.Size)
	}
	if len(seen) != want {
		t.Errorf("%d samples were given, want %d of %d", len(seen), want, s.Len)
	}
	for i, times := range seen {
		if times != 1 {
			t.Errorf("sample %d was given %d times", i, times)
		}
	}
	if s.LastBatch != Pad && repeats != 0 || repeats >= s.Size {
		t.Errorf("%d repeats with tail %d and %d ranks", repeats, s.LastBatch, s.Size)
	}
	if s.LastBatch != Uneven && len(steps) != 1 {
		t.Errorf("ranks make different numbers of steps: %v", steps)
	}
}

// N ranks with batches of B samples get the same global batches as one rank with batches of N·B
// samples.
func TestSamplerRanksShareOneOrder(t *testing.T) {
	one := Sampler{Len: 103, Size: 1, Batch: 12, Shuffle: true, Seed: 9}
	four := Sampler{Len: 103, Size: 4, Batch: 3, Shuffle: true, Seed: 9}
	alone, ranks := epoch(one, Position{Epoch: 5})[0], epoch(four, Position{Epoch: 5})
	for step, whole := range alone {
		var samples []int
		for _, shares := range ranks {
			share := shares[step]
			samples = append(samples, share.Indices[:len(share.Indices)-share.Repeats]...)
		}
		if !slices.Equal(samples, whole.Indices) {
			t.Errorf("step %d: four ranks have %v, one has %v", step, samples, whole.Indices)
		}
	}
}

// A sampler that resumes at any position, with any number of ranks, returns the rest of the epoch
// exactly once.
func TestSamplerResumesAtAnotherNumberOfRanks(t *testing.T) {
	first := Sampler{Len: 97, Size: 3, Batch: 4, Shuffle: true, Seed: 1, LastBatch: Uneven}
	for stop := range 8 {
		seen := map[int]int{}
		at := Position{Epoch: 1}
		for _, shares := range epoch(first, at) {
			for _, share := range shares[:stop] {
				for _, i := range share.Indices {
					seen[i]++
				}
				at = share.After
			}
		}
		second := first
		second.Size, second.Batch = 5, 7
		for _, shares := range epoch(second, at) {
			for _, share := range shares {
				for _, i := range share.Indices {
					seen[i]++
				}
			}
		}
		if len(seen) != first.Len {
			t.Errorf("stopped after %d steps: %d samples were given, want %d", stop, len(seen), first.Len)
		}
		for i, times := range seen {
			if times != 1 {
				t.Errorf("stopped after %d steps: sample %d was given %d times", stop, i, times)
			}
		}
	}
}

func TestSamplerOrderDependsOnSeedAndEpoch(t *testing.T) {
	s := Sampler{Len: 1000, Shuffle: true, Seed: 1}
	again := s
	if !slices.Equal(s.order(3), again.order(3)) {
		t.Error("the same seed and epoch gave two orders")
	}
	other := Sampler{Len: 1000, Shuffle: true, Seed: 2}
	for name, order := range map[string][]int{"epoch": s.order(4), "seed": other.order(3)} {
		if slices.Equal(s.order(3), order) {
			t.Errorf("another %s gave the same order", name)
		}
	}
}

// The order of a seed is fixed, because a later version may resume a run.
func TestSamplerOrderIsFixed(t *testing.T) {
	got := Sampler{Len: 10, Shuffle: true, Seed: 42}.order(7)
	if want := []int{2, 9, 1, 0, 5, 3, 6, 8, 4, 7}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestSamplerCheck(t *testing.T) {
	for want, s := range map[string]Sampler{
		"data: the batch size is 0, want at least 1":                                               {Len: 5, Size: 1},
		"data: rank 2 with 2 ranks, want 0 <= rank < ranks":                                        {Len: 5, Size: 2, Rank: 2, Batch: 1},
		"data: fewer samples (3) than ranks (4)":                                                   {Len: 3, Size: 4, Batch: 1},
		"data: 100 samples, want at least one batch of 64 for each of 2 ranks with LastBatch Drop": {Len: 100, Size: 2, Batch: 64, LastBatch: Drop},
	} {
		if err := s.check(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
}
