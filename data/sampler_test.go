package data

import (
	"fmt"
	"math"
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

// With GlobalBatch, any number of ranks makes the same steps. In each step every sample of the global batch has the
// same weight, in micro-batches of at most Batch samples. The last global batch of 103 samples has 3 or 7.
func TestGlobalBatch(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4} {
		for _, batch := range []int{1, 2, 5, 200} {
			for _, global := range []int{4, 10, 12} {
				for _, last := range []LastBatch{Pad, Drop, Uneven} {
					s := Sampler{Len: 103, Size: size, Batch: batch, GlobalBatch: global, Shuffle: true, Seed: 3, LastBatch: last}
					t.Run(fmt.Sprintf("%d/%d/%d/%d", size, batch, global, last), func(t *testing.T) { checkGlobalBatches(t, s) })
				}
			}
		}
	}
}

func checkGlobalBatches(t *testing.T, s Sampler) {
	begin := s.Begin(2)
	order := s.order(begin.Epoch)
	if steps := s.StepsFrom(begin); s.LastBatch == Drop {
		order = order[:steps*s.GlobalBatch]
	} else if want := len(slices.Collect(slices.Chunk(order, s.GlobalBatch))); steps != want {
		t.Errorf("%d steps, want %d", steps, want)
	}
	ranks, before := epoch(s, begin), begin
	for whole := range slices.Chunk(order, s.GlobalBatch) {
		weights, passes, samples := map[int]float64{}, make([]int, s.Size), make([]int, s.Size)
		for r := range ranks {
			for ends := false; !ends && len(ranks[r]) > 0; {
				share := ranks[r][0]
				ranks[r] = ranks[r][1:]
				after := before
				if ends = share.EndsStep; ends {
					after.Sample += len(whole)
				}
				if n := len(share.Indices); n > s.Batch || share.After != after {
					t.Errorf("rank %d: %d samples and the position %+v in a micro-batch, want at most %d and %+v", r, n, share.After, s.Batch, after)
				}
				for _, i := range share.Indices {
					weights[i] += share.Weight / float64(len(share.Indices)*s.Size)
				}
				passes[r]++
				samples[r] += len(share.Indices)
			}
		}
		for _, i := range whole {
			if want := 1 / float64(len(whole)); math.Abs(weights[i]-want) > 1e-15 {
				t.Errorf("from %d: sample %d has the weight %v, want %v", before.Sample, i, weights[i], want)
			}
			delete(weights, i)
		}
		for i, w := range weights {
			if w != 0 {
				t.Errorf("from %d: sample %d is not in the global batch, but has the weight %v", before.Sample, i, w)
			}
		}
		if slices.Max(samples)-slices.Min(samples) > 1 {
			t.Errorf("from %d: the ranks have %v samples", before.Sample, samples)
		}
		if slices.Max(passes) != slices.Min(passes) && s.Batch > 1 && len(whole) >= s.Size {
			t.Errorf("from %d: the ranks have %v micro-batches", before.Sample, passes)
		}
		before.Sample += len(whole)
	}
	for r, rest := range ranks {
		if len(rest) > 0 {
			t.Errorf("rank %d has %d micro-batches more", r, len(rest))
		}
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
		"data: the batch size is 0, want at least 1":                                  {Len: 5, Size: 1},
		"data: rank 2 with 2 ranks, want 0 <= rank < ranks":                           {Len: 5, Size: 2, Rank: 2, Batch: 1},
		"data: fewer samples (3) than ranks (4)":                                      {Len: 3, Size: 4, Batch: 1},
		"data: 100 samples, want at least a global batch of 128 with LastBatch Drop":  {Len: 100, Size: 2, Batch: 64, LastBatch: Drop},
		"data: 100 samples, want at least a global batch of 101 with LastBatch Drop":  {Len: 100, Size: 2, Batch: 1, GlobalBatch: 101, LastBatch: Drop},
		"data: GlobalBatch is 3, want at least one sample for each of 4 ranks, or 0":  {Len: 100, Size: 4, Batch: 1, GlobalBatch: 3},
		"data: GlobalBatch is -1, want at least one sample for each of 4 ranks, or 0": {Len: 100, Size: 4, Batch: 1, GlobalBatch: -1},
	} {
		if err := s.check(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
}
