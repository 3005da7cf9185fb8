//go:build cgo && linux

package cuda

import (
	"strings"

	"github.com/goddp/goddp/device"
)

// peaks are the floating-point operations that NVIDIA's data sheets state for dense matrix products, in 10¹² a second: in 16-bit
// types accumulated in float32, in TF32, and in float32. The first row holds whose words are in a GPU's name.
var peaks = []struct {
	name                string
	half, tf32, float32 float64
}{
	{"GB200", 2500, 1250, 80},
	{"B200", 2250, 1100, 75},
	{"GH200", 989, 494, 67},
	{"H200", 989, 494, 67},
	{"H100 PCIe", 756, 378, 51},
	{"H100 NVL", 835, 417, 60},
	{"H100", 989, 494, 67},
	{"H20", 148, 74, 44},
	{"A100", 312, 156, 19.5},
	{"A800", 312, 156, 19.5},
	{"A40", 149.7, 74.8, 37.4},
	{"A30", 165, 82, 10.3},
	{"A10", 125, 62.5, 31.2},
	{"L40S", 362, 183, 91.6},
	{"L40", 181, 90.5, 90.5},
	{"L4", 121, 60, 30.3},
	{"RTX A6000", 154.8, 77.4, 38.7},
	{"RTX 4090", 165.2, 82.6, 82.6},
}

// PeakFLOPS returns how many floating-point operations the GPU can make in a second in matrix products of a type, or 0 if that is
// not known. Products of Float32 use TF32 if Options.AllowTF32 is set.
func (d *gpuDevice) PeakFLOPS(dt device.DType) float64 { return peak(d.props.name, dt, d.kernels.tf32) }

func peak(name string, dt device.DType, tf32 bool) float64 {
	if strings.Contains(name, "MIG") { // a part of a GPU
		return 0
	}
	words := " " + strings.ReplaceAll(name, "-", " ") + " "
	for _, p := range peaks {
		if !strings.Contains(words, " "+p.name+" ") {
			continue
		}
		switch {
		case dt == device.Float16 || dt == device.BFloat16:
			return p.half * 1e12
		case dt == device.Float32 && tf32:
			return p.tf32 * 1e12
		case dt == device.Float32:
			return p.float32 * 1e12
		}
	}
	return 0
}
