//go:build cgo && linux

package nccl_test

import (
	"testing"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
)

// suite returns the scenarios of all backends, for fake libraries with these faults.
func suite(faults ...string) backendtest.Suite {
	return backendtest.Suite{Open: func(t testing.TB, n int, change func(rank int, cfg *backend.Config)) []*backendtest.Rank {
		control(t, faults...)
		return worldOf(t, n, change)
	}}
}

func TestEmulatedScenarios(t *testing.T) { suite().Run(t) }

func TestEmulatedScenariosWithSmallAllReduce(t *testing.T) { suite(mapping).Run(t) }

// ncclCommAbort does not return on rank 0.
func TestEmulatedAbortThatHangs(t *testing.T) { suite("abort 0").Abort(t) }
