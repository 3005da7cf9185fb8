//go:build cgo && linux

package nccl_test

import (
	"runtime"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
)

// BenchmarkStart measures the host's time and Go's allocations for one call, on a fake GPU.
func BenchmarkStart(b *testing.B) {
	control(b)
	m := world(b, 1)[0]
	x, err := m.Upload(backendtest.HostTensor(device.Float32, 1))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c := &backend.Call{Kind: backend.AllReduce, Dst: x, Src: x}
		task, err := m.Start(c)
		if err != nil {
			b.Fatal(err)
		}
		for state := backend.Queued; state < backend.Done; state, _ = task.State() {
			runtime.Gosched()
		}
	}
}
