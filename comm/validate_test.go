package comm

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// validCall returns a valid AllReduce of 1 KiB, and its group, in which this rank is rank 1 of
// 4.
func validCall() (*ProcessGroup, *backend.Call) {
	x := device.HostTensor(make([]float32, 256), device.Invalid)
	return &ProcessGroup{handle: &handle{group: &group{size: 4, rank: 1}}}, &backend.Call{Kind: backend.AllReduce, Dst: x, Src: x}
}

// The method validate allocates nothing.
func TestValidationAllocatesNothing(t *testing.T) {
	pg, call := validCall()
	if n := testing.AllocsPerRun(100, func() { pg.validate(call) }); n != 0 {
		t.Errorf("a check allocates %v times", n)
	}
}
