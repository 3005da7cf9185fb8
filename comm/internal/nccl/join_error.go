//go:build cgo && linux

package nccl

import (
	"context"
	"errors"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// Keys of the bootstrap's steps. The ranks exchange values under each key and so wait for each
// other.
const (
	keyOpened    = "nccl/opened"    // the rank's identity
	keyReady     = "nccl/ready"     // the rank's readiness
	keyConnected = "nccl/connected" // empty
	keyMapped    = "nccl/mapped"    // the rank's mapping of its peers' memory: see the type mapping
)

// steps describes what a rank has not done yet if it has not sent its value of a key.
var steps = map[string]string{
	keyOpened: "opened NCCL's library", keyReady: "made its device ready", keyConnected: "come out of ncclCommInitRankConfig",
	keyMapped: "mapped its peers' memory",
}

// joinError reports err to the coordinator and returns the bootstrap's error, the same on all
// ranks. After a timeout it is a LateError that names the late ranks.
func (g *Group) joinError(err error) error {
	why := backend.GiveUp(g.cfg.Control, err)
	f := g.cfg.Control.Failure()
	if f == nil || f.Kind != coordinator.Reported || !errors.Is(why, failure.ErrTimeout) {
		return why
	}
	step := steps[f.Key]
	if step == "" || len(f.Absent) == 0 {
		return why
	}
	if f.Reporter != g.cfg.Control.Rank() {
		err = errors.New(f.Text)
	}
	return &LateError{Ranks: f.Absent, Size: g.cfg.Size, Step: step, Err: err}
}

// gather sends this rank's value to the other ranks and returns the values of all.
func (g *Group) gather(ctx context.Context, key string, value []byte) ([][]byte, error) {
	return g.cfg.Control.Gather(ctx, key, value)
}
