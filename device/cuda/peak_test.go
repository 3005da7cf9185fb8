//go:build cgo && linux

package cuda

import (
	"testing"

	"github.com/goddp/goddp/device"
)

// The longer of two names that fit comes first, and a GPU that is not known has no peak.
func TestPeak(t *testing.T) {
	for _, c := range []struct {
		name string
		dt   device.DType
		tf32 bool
		want float64
	}{
		{"NVIDIA H200", device.BFloat16, false, 989e12},
		{"NVIDIA H200", device.Float32, true, 494e12},
		{"NVIDIA H200", device.Float32, false, 67e12},
		{"NVIDIA H200", device.Float64, false, 0},
		{"NVIDIA GH200 480GB", device.Float16, false, 989e12},
		{"NVIDIA H100 PCIe", device.BFloat16, false, 756e12},
		{"NVIDIA H100 80GB HBM3", device.BFloat16, false, 989e12},
		{"NVIDIA A100-SXM4-80GB", device.BFloat16, false, 312e12},
		{"NVIDIA A10", device.BFloat16, false, 125e12},
		{"NVIDIA L40S", device.BFloat16, false, 362e12},
		{"NVIDIA L4", device.BFloat16, false, 121e12},
		{"NVIDIA H200 MIG 1g.18gb", device.BFloat16, false, 0},
		{"NVIDIA A1000", device.BFloat16, false, 0},
		{"fakegpu 0", device.BFloat16, false, 0},
	} {
		if got := peak(c.name, c.dt, c.tf32); got != c.want {
			t.Errorf("%s, %v, TF32 %v: %v, want %v", c.name, c.dt, c.tf32, got, c.want)
		}
	}
}
