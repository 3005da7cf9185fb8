package cpu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// A tensor in a device's memory is filled by a kernel and copied to the host.
func Example() {
	dev := cpu.New(&cpu.Options{Threads: 2})
	defer dev.Close()
	buf, err := dev.Alloc(2 * device.Float32.Size())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Free(buf)
	t := device.NewTensor(buf, device.Float32, 2)
	if err := dev.Kernels().Fill(dev.Compute(), t, 1.5); err != nil {
		fmt.Println(err)
		return
	}
	host := make([]byte, t.Bytes())
	if err := dev.CopyOut(context.Background(), dev.Compute(), host, t.Buf); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t, math.Float32frombits(binary.NativeEndian.Uint32(host)))
	// Output: float32[2] 1.5
}
