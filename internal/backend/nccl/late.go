//go:build cgo && linux

package nccl

import (
	"context"
	"errors"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// Keys by which ranks tell each other what they have behind them while a group is made, and
// wait for the others.
const (
	keyOpened    = "nccl/opened"    // its value is the rank's identity
	keyReady     = "nccl/ready"     // a readiness
	keyConnected = "nccl/connected" // nothing
	keyMapped    = "nccl/mapped"    // why the rank could not map its peers' memory
)

// steps are what a rank has not done that has not given its value of a key.
var steps = map[string]string{
	keyOpened: "opened NCCL's library", keyReady: "made its device ready", keyConnected: "come out of ncclCommInitRankConfig",
	keyMapped: "mapped its peers' memory",
}

// nameLate returns why the group was not made, on all ranks the same: where the time was over
// first, which ranks kept the others waiting.
func (g *Group) nameLate(err error) error {
	told := backend.GiveUp(g.cfg.Control, err)
	f := g.cfg.Control.Failure()
	if f == nil || f.Kind != coordinator.Reported || !errors.Is(told, backend.ErrTimeout) {
		return told
	}
	step := steps[f.Key]
	if step == "" || len(f.Absent) == 0 {
		return told
	}
	if f.Reporter != g.cfg.Control.Rank() {
		err = errors.New(f.Text)
	}
	return &LateError{Ranks: f.Absent, Size: g.cfg.Size, Step: step, Err: err}
}

// gather gives the others a value, and returns theirs.
func (g *Group) gather(ctx context.Context, key string, value []byte) ([][]byte, error) {
	return g.cfg.Control.Gather(ctx, key, value)
}
