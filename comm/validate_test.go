package comm

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// checkedCall is an all-reduce of 1 KiB, as rank 1 of 4 makes it.
func checkedCall() (*ProcessGroup, *backend.Call) {
	x := device.HostTensor(make([]float32, 256), device.Invalid)
	return &ProcessGroup{group: &group{size: 4, rank: 1}}, &backend.Call{Kind: backend.AllReduce, Dst: x, Src: x}
}

// Every call is checked before it starts: that leaves nothing to the collector.
func TestCheckAllocatesNothing(t *testing.T) {
	pg, call := checkedCall()
	if n := testing.AllocsPerRun(100, func() { pg.validate(call) }); n != 0 {
		t.Errorf("a check allocates %v times", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	pg, call := checkedCall()
	b.ReportAllocs()
	for b.Loop() {
		pg.validate(call)
	}
}
