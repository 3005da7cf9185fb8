package kernels

import "github.com/goddp/goddp/device"

// QuantBlock is how many quantised numbers share a scale: with it they fill
// Align bytes.
const QuantBlock = device.Align - 4

// QuantBlocks is how many blocks n quantised numbers take.
func QuantBlocks(n int) int { return (n + QuantBlock - 1) / QuantBlock }

// QuantizedLen is how many bytes n quantised numbers take.
func QuantizedLen(n int) int { return QuantBlocks(n) * device.Align }
