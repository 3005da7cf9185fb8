package cpu

import (
	endian "encoding/binary"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// Package kernels defines quantized numbers.
const (
	notFinite  = -128       // represents NaN
	leastTop   = 0x1p-100   // a block without a larger number becomes all zeros
	infinity   = 0x7F800000 // the bits of +Inf
	magnitude  = 0x7FFFFFFF // masks all bits of a float32 except its sign
	quantCost  = 2 * kernels.QuantBlock
	scaleBytes = device.Align - kernels.QuantBlock
)

func (k *kernelSet) Quantize(_ device.Stream, dst, x device.Tensor) error {
	operand.Quantize("Quantize", x, dst)
	v, blocks := device.Elements[float32](x), device.Elements[uint8](dst)
	k.each(kernels.QuantBlocks(len(v)), quantCost, func(lo, hi int) {
		for b := lo; b < hi; b++ {
			quantize(blocks[b*device.Align:(b+1)*device.Align], v[b*kernels.QuantBlock:min((b+1)*kernels.QuantBlock, len(v))])
		}
	})
	return nil
}

// quantize writes one block.
func quantize(block []uint8, x []float32) {
	var top uint32 // top: without the sign, bit patterns have the same order as numbers
	for _, v := range x {
		if bits := math.Float32bits(v) & magnitude; bits < infinity {
			top = max(top, bits)
		}
	}
	var scale, inverse float32
	if m := math.Float32frombits(top); m >= leastTop {
		scale, inverse = m/127, 127/m
	}
	endian.LittleEndian.PutUint32(block, math.Float32bits(scale))
	q := block[scaleBytes:]
	for i, v := range x {
		if math.Float32bits(v)&magnitude >= infinity {
			q[i] = 0x100 + notFinite
			continue
		}
		// Adding 1.5·2^23 rounds to an integer and puts it into the lowest bits.
		q[i] = uint8(math.Float32bits(float32(v*inverse) + 0x1.8p23))
	}
	clear(q[len(x):])
}

func (k *kernelSet) Dequantize(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	operand.Quantize("Dequantize", dst, x)
	d, blocks := device.Elements[float32](dst), device.Elements[uint8](x)
	k.each(kernels.QuantBlocks(len(d)), quantCost, func(lo, hi int) {
		var buf [kernels.QuantBlock]float32
		for b := lo; b < hi; b++ {
			to := d[b*kernels.QuantBlock : min((b+1)*kernels.QuantBlock, len(d))]
			dequantize(buf[:len(to)], blocks[b*device.Align:])
			accumulate(to, acc, buf[:])
		}
	})
	return nil
}

// dequantize reads the first numbers of a block.
func dequantize(dst []float32, block []uint8) {
	scale := math.Float32frombits(endian.LittleEndian.Uint32(block))
	for i, q := range block[scaleBytes:][:len(dst)] {
		if dst[i] = scale * float32(int8(q)); int8(q) == notFinite {
			dst[i] = float32(math.NaN())
		}
	}
}
