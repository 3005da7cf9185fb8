package main

import (
	"math"
	"math/rand/v2"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
)

const (
	rows    = 16 // number of samples of a rank in a step
	batches = 4  // step t takes batch t mod batches
)

// job holds the process group and the samples of all ranks. The samples of rank r in batch b begin with
// number (b·ranks + r)·rows.
type job struct {
	*comm.ProcessGroup
	x, y []float64
}

// newJob draws the inputs, and computes the targets from them by a random network of one layer.
func newJob(pg *comm.ProcessGroup) *job {
	random := rand.New(rand.NewPCG(1, 2))
	normal := func(n int, std float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = std * random.NormFloat64()
		}
		return v
	}
	n := batches * pg.Size() * rows
	teacher, j := normal(width*width, 0.2), &job{pg, normal(n*width, 1), make([]float64, n*width)}
	for i := range j.y {
		sum := 0.0
		for k := range width {
			sum += teacher[i%width*width+k] * j.x[i/width*width+k]
		}
		j.y[i] = math.Tanh(sum)
	}
	return j
}

// samplesOf returns the numbers of a rank's samples in a step.
func samplesOf(rank, ranks, step int) []int {
	numbers := make([]int, rows)
	for i := range numbers {
		numbers[i] = (step%batches*ranks+rank)*rows + i
	}
	return numbers
}

// part holds the numbers of the samples of a pass. If they all belong to one rank, rank is that rank.
type part struct {
	rank    int
	numbers []int
}

// pass makes a pass over the samples of a part.
func (j *job) pass(r *recipe, step int, p part, weight float64) pass {
	matrix := func(from []float64) *autograd.Variable {
		var data []float64
		for _, n := range p.numbers {
			data = append(data, from[n*width:][:width]...)
		}
		if r.isExact() {
			return autograd.FromSlice(j.Device(), data, len(p.numbers), width)
		}
		short := make([]float32, len(data))
		for i, v := range data {
			short[i] = float32(v)
		}
		return autograd.FromSlice(j.Device(), short, len(p.numbers), width)
	}
	made := pass{x: matrix(j.x), y: matrix(j.y), weight: weight}
	if r.branch != nil {
		made.branch = r.branch(p.rank, step)
	}
	return made
}
