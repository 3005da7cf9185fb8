//go:build cgo && linux

package cuda

// #include "blaslt.h"
import "C"

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/goddp/goddp/device"
)

// cuBLAS proposes several algorithms for a product, by its estimate the fastest first. Often another one is faster
// (docs/results/gpu.md has figures). Two algorithms that split the inner dimension into the same number of parts usually
// add in the same order, and then their results have the same bits. settle compares them.
const (
	leastRaced = 4e9                    // operations of a product: 6 µs of an H200
	mostRaced  = 64                     // attempts, which bounds the time that a program with ever new shapes spends
	raceTime   = 200 * time.Microsecond // of runs that are timed together
)

// races says which products' algorithms race.
type races struct {
	least float64 // operations
	begun int
}

// ways returns how many algorithms for a product are considered.
func (r *races) ways(p product) int {
	if 2*float64(p.batch)*float64(p.rows)*float64(p.cols)*float64(p.inner) < r.least || r.begun == mostRaced {
		return 1
	}
	return C.BLASLT_WAYS
}

// settle chooses the algorithm of a plan for a product with result dst, and with another operand of the epilogue in aux. It
// leaves dst undefined unless the product adds to it. It runs each algorithm, and lets those race whose results have the
// hash of the first one's. If something fails, the first one is chosen. A later product settles the plan if the result is
// zero, which says nothing of the order of additions, during a graph capture, and on another stream than Compute.
func (k *kernelSet) settle(s *gpuStream, plan *blasPlan, dst, aux device.Tensor, a arguments) error {
	if s != k.d.compute {
		return nil
	}
	if captured, err := s.capturing(); captured || err != nil {
		return err
	}
	if plan.settled = k.blas.races.begun == mostRaced; plan.settled {
		return nil
	}
	k.blas.races.begun++
	if a.beta != 0 {
		scratch, err := k.scratch(&dst)
		if err != nil {
			return k.d.Err()
		}
		defer k.d.Free(scratch)
		a.beta, a.c, a.d = 0, k.addr(dst), k.addr(dst)
	}
	run := func(way int) error {
		plan.c.way = C.int(way)
		return k.blas.run(s, plan, a)
	}
	same, best := []int{0}, 0
	hashes, err := k.hashes(s, dst, aux, int(plan.c.count), run)
	if err == nil {
		plan.settled = hashes[0] != hashes[plan.c.count]
		for way := 1; way < int(plan.c.count); way++ {
			if hashes[way] == hashes[0] {
				same = append(same, way)
			}
		}
	}
	if plan.settled && len(same) > 1 {
		best = k.d.race(s, len(same), raceTime, func(i int) error { return run(same[i]) })
	}
	plan.c.way = C.int(same[best])
	return k.d.Err()
}

// hashes returns the hashes of dst and aux after each of several ways to compute them, and then with zeros in dst. A way
// that cannot run has another hash than the first one.
func (k *kernelSet) hashes(s *gpuStream, dst, aux device.Tensor, ways int, run func(way int) error) ([]uint64, error) {
	of := device.Tensor{DType: device.Int64, Shape: device.Shape{ways + 1}}
	scratch, err := k.scratch(&of)
	if err != nil {
		return nil, err
	}
	defer k.d.Free(scratch)
	ctx, cancel := context.WithTimeout(k.d.life, raceWait)
	defer cancel()
	read := make([]byte, of.Bytes())
	if err := k.d.CopyIn(s, of.Buf, read); err != nil {
		return nil, err
	}
	for way := range ways + 1 {
		var err error
		if way < ways {
			err = run(way)
		} else {
			err = k.scale(s, dst, 0)
		}
		if err != nil && way > 0 && k.d.Err() == nil {
			continue
		}
		for _, t := range []device.Tensor{dst, aux} {
			if err == nil && !t.IsZero() {
				err = k.Hash(s, of.Range(way, way+1), t)
			}
		}
		if err == nil && way == 0 {
			err = s.Sync(ctx) // the other algorithms' kernels are loaded when the stream waits for nobody
		}
		if err != nil {
			return nil, err
		}
	}
	if err := k.d.CopyOut(ctx, s, read, of.Buf); err != nil {
		return nil, err
	}
	hashes := make([]uint64, ways+1)
	for way := range hashes {
		hashes[way] = binary.NativeEndian.Uint64(read[8*way:])
	}
	return hashes, nil
}
