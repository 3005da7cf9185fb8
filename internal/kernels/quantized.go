package kernels

import "github.com/goddp/goddp/device"

// QuantBlock is the number of quantized numbers that share a scale. With the scale they fill
// device.Align bytes.
const QuantBlock = device.Align - 4

// QuantBlocks returns the number of blocks of n quantized numbers.
func QuantBlocks(n int) int { return (n + QuantBlock - 1) / QuantBlock }

// QuantizedLen returns the number of bytes of n quantized numbers.
func QuantizedLen(n int) int { return QuantBlocks(n) * device.Align }
