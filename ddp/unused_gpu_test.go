//go:build cgo && linux

package ddp

import (
	"context"
	"errors"
	"testing"

	"github.com/goddp/goddp/comm"
)

func init() { workers["unused"], workers["rebuilt"] = unusedOnGPU, rebuiltOnGPU }

// On GPUs too ranks may use different parameters.
func TestGPUControlFlowDifferentAcrossRanks(t *testing.T) { onGPUs(t, 2, 2, "unused") }

func unusedOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return errors.Join(
		controlFlow(pg, &Options{FindUnusedParameters: true}),
		controlFlow(pg, &Options{FindUnusedParameters: true, BucketCapMB: 1e-6}),
	)
}

// On GPUs too buckets follow the order of gradients, and take along what is in
// them.
func TestGPUBucketsAreRebuilt(t *testing.T) { onGPUs(t, 2, 2, "rebuilt") }

func rebuiltOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return bucketsAreRebuilt(pg)
}
