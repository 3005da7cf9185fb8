package device_test

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// The kernel y = a·x in CUDA C++, for GPUs, and in Go, for the CPU. The CUDA function runs in each
// thread of the grid, the Go function once.
const scaleSource = `
template <class T> __device__ void scale(T *y, const T *x, double a, i64 n) {
	for (i64 i = global_thread(); i < n; i += global_threads()) y[i] = down<T>(a * up(x[i]));
}`

func scale(y, x []float32, a float64, n int) {
	for i := range n {
		y[i] = float32(a) * x[i]
	}
}

// A program's own kernel is launched on a stream of a device. The tensors are in the host's memory
// here, because the device is the CPU.
func ExampleModule() {
	module := device.NewModule("scale.cu", scaleSource)
	kernel := module.Kernel("scale", "y[n] x[n]", scale)

	dev := cpu.New(nil)
	defer dev.Close()
	x := device.HostTensor([]float32{1, 2, 3}, device.Float32)
	y := device.HostTensor(make([]float32, 3), device.Float32)
	if err := dev.Kernels().Launch(dev.Compute(), kernel, device.Flat(3), y, x, 2.0, 3); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(device.Elements[float32](y))
	// Output: [2 4 6]
}
