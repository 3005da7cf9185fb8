//go:build cgo && linux

package nccl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/backend"
)

// keySteps is the key in the store of what ranks have behind them while a group is
// made: "rank/step " for each.
const keySteps = "steps"

// lateTime bounds the question for it.
const lateTime = time.Second

// step is what a rank does by itself while a group is made; the others then wait for
// it. They are taken in order.
type step int

const (
	opened step = iota
	ready
	connected
	mapped
	allSteps
)

func (s step) String() string {
	return [...]string{
		opened: "opened NCCL's library", ready: "made its device ready", connected: "come out of ncclCommInitRankConfig",
		mapped: "mapped its peers' memory",
	}[s]
}

// has tells the others that this rank has a step behind it.
func (g *Group) has(ctx context.Context, s step) error {
	return g.cfg.Store.Append(ctx, keySteps, fmt.Appendf(nil, "%d/%d ", g.cfg.Rank, s))
}

// nameLate adds to the error of a group that was not made in time which ranks kept
// the others waiting, unless another rank, which gave up first, said so.
func (g *Group) nameLate(err error) error {
	var told *backend.AbortedError
	if !errors.Is(err, backend.ErrTimeout) || errors.As(err, &told) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lateTime)
	defer cancel()
	var value []byte
	there, unknown := g.cfg.Store.Check(ctx, keySteps)
	if there {
		value, unknown = g.cfg.Store.Get(ctx, keySteps)
	}
	if unknown != nil {
		return fmt.Errorf("%w; how far the ranks have come is not known: %w", err, unknown)
	}
	next, ranks := late(string(value), g.cfg.Size)
	if next == allSteps {
		return err
	}
	return &LateError{Ranks: ranks, Size: g.cfg.Size, Step: next.String(), Err: err}
}

// late reads what keySteps holds: the first step that some rank has not behind it,
// and these ranks.
func late(value string, size int) (next step, ranks []int) {
	after := make([]step, size)
	for entry := range strings.FieldsSeq(value) {
		var r int
		var s step
		if n, _ := fmt.Sscanf(entry, "%d/%d", &r, &s); n == 2 && r >= 0 && r < size {
			after[r] = max(after[r], s+1)
		}
	}
	next = allSteps
	for r, s := range after {
		if s < next {
			next, ranks = s, nil
		}
		if s == next {
			ranks = append(ranks, r)
		}
	}
	return next, ranks
}
