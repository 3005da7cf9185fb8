//go:build cgo && linux

package doctor_test

import (
	"testing"

	"github.com/goddp/goddp/cmd/goddp/internal/doctor"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// A product runs on a fake GPU, and leaves no memory behind.
func TestEmulatedMeasureProduct(t *testing.T) {
	fakegpu.Use(t)
	dev, err := cuda.Open(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	tflops, err := doctor.MeasureProduct(t.Context(), dev, 32)
	if err != nil || tflops <= 0 {
		t.Errorf("%v TFLOPS, %v", tflops, err)
	}
	if m := dev.Memory(); m.InUse != 0 {
		t.Errorf("%+v is left", m)
	}
}

// The libraries of a host with a GPU, and the GPU of a local rank, are found without a context on it.
func TestEmulatedProbeFindsGPU(t *testing.T) {
	fakegpu.Use(t)
	t.Setenv("GODDP_DEVICE", "")
	f := doctor.Probe(doctor.Options{Rank: 5, LocalRank: 3})
	versions := map[string]string{}
	for _, l := range f.Libraries {
		versions[l.Name] = l.Version
	}
	if f.GPU != "0000:03:00.0" || versions["NCCL"] != "2.28.3" || versions["cuBLASLt"] != "13.1.0" || versions["libcuda"] != "CUDA 13.0" || versions["cuDNN"] != "9.19.0" {
		t.Errorf("GPU %s, libraries %v", f.GPU, f.Libraries)
	}
	if f.NVML != nil {
		t.Error("rank 5 is not the first of its host, and has read NVML")
	}
	if f = doctor.Probe(doctor.Options{}); f.NVML == nil || len(f.NVML.GPUs) == 0 || f.NVML.GPUs[0].BusID != f.GPU {
		t.Errorf("rank 0 uses GPU %s, and NVML has %+v", f.GPU, f.NVML)
	}
}
