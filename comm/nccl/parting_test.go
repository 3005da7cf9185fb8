//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
)

// done is the progress of a rank that has done so many collectives.
type done struct{ collectives atomic.Int64 }

func (d *done) with(int) (collectives, sends, recvs int) { return int(d.collectives.Load()), 0, 0 }
func (d *done) idle() bool                               { return true }

// channels makes the control channels of n ranks in this process.
func channels(t *testing.T, n int) []*control {
	t.Helper()
	hub, ranks := host.NewHub(), coordinatortest.Ranks(t, n)
	cs, errs := make([]*control, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			cfg := backend.Config{Rank: r, Size: n, Control: ranks[r]}
			cs[r], errs[r] = openControl(t.Context(), cfg, Options{Control: host.Options{Hub: hub}}, new(done))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return cs
}

// TestParting has ranks leave at random times, often within stayGrace of each
// other: all end their communicators together, or none does, and nobody waits
// for one that stays.
func TestParting(t *testing.T) {
	const seeds = 100
	whole := 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			const n = 4
			rng := rand.New(rand.NewPCG(seed, 0))
			spread := []time.Duration{stayGrace / 2, 2 * stayGrace, 10 * stayGrace}[seed%3]
			cs := channels(t, n)
			var alone [n]bool
			var wg sync.WaitGroup
			for r, c := range cs {
				after := time.Duration(rng.Int64N(int64(spread)))
				wg.Go(func() {
					time.Sleep(after)
					at := time.Now()
					if err := c.farewell(t.Context()); err != nil {
						t.Errorf("seed %d: rank %d: %v", seed, r, err)
					}
					if took := time.Since(at); took > stayGrace+2*stayTick {
						t.Errorf("seed %d: rank %d waited %v", seed, r, took)
					}
					alone[r] = c.alone()
					c.close()
				})
			}
			wg.Wait()
			for r := range n {
				if alone[r] != alone[0] {
					t.Fatalf("seed %d: ranks that end alone: %v, want all or none", seed, alone)
				}
			}
			if !alone[0] {
				whole++
			}
			if alone[0] && spread < stayGrace {
				t.Errorf("seed %d: ranks that leave within %v did not end together", seed, spread)
			}
		})
	}
	if whole == 0 || whole == seeds {
		t.Errorf("all ranks ended together in %d of %d cases: the times are ill chosen", whole, seeds)
	}
}

// TestBehind has a rank leave when another has yet to do what it did.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := channels(t, 2)
		cs[0].progress.(*done).collectives.Store(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		at := time.Now()
		time.AfterFunc(time.Minute, func() { cs[1].progress.(*done).collectives.Store(1) })
		if err := cs[0].farewell(ctx); err != nil {
			t.Error(err)
		}
		if waited := time.Since(at); waited < time.Minute || waited > time.Minute+2*stayTick {
			t.Errorf("left after %v, want a minute", waited)
		}
		cs[0].close()
		if _, left := cs[1].left(0); !left || cs[1].ctx.Err() != nil {
			t.Errorf("rank 1: rank 0 left is %v, and its channel ended with %v", left, context.Cause(cs[1].ctx))
		}
		if err := cs[1].farewell(ctx); err != nil || !cs[1].alone() {
			t.Errorf("rank 1 left later with %v, alone is %v", err, cs[1].alone())
		}
		cs[1].close()
	})
}
