// Package kernels lists the operations that a device implements for the packages of this module:
// autograd, optim, ddp and others. [Of] returns the operations of a device. Package device exports
// the few operations that other modules may call. This package also has helpers for the host side of
// a device: [Poll] waits for a device, [F16] and the functions beside it convert 16-bit floats,
// [CheckMemory] fails before the host's memory is exhausted.
//
// # Random numbers
//
// A random number is a function of the seed and of an element's index e = offset+i in the random
// sequence. It is the same on every device. Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As
// Easy as 1, 2, 3", 2011) with the key (seed, seed>>32) and the counter (b, b>>32, stream, 0) gives the
// four 32-bit words w0..w3 of block b. The stream is 0 for Uniform, 1 for Normal and 2 for Dropout.
// Then
//
//	Uniform float32  b = e/4, u = (w[e%4] >> 8) · 2^-24
//	Uniform float64  b = e/2, u = ((w[j]<<32 | w[j+1]) >> 11) · 2^-53 with j = 2·(e%2)
//	                 element = lo + (hi-lo)·u
//	Normal  float32  b = e/4, j = 2·(e%4/2), u = (w[j]+1) · 2^-32, v = w[j+1] · 2^-32
//	Normal  float64  b = e/2, u = (((w0<<32 | w1) >> 11) + 1) · 2^-53, v = ((w2<<32 | w3) >> 11) · 2^-53
//	                 z = sqrt(-2·log u) · (cos 2πv for even e, sin 2πv for odd e)
//	                 element = mean + std·z
//
//	Dropout          b = e/4, dropped if w[e%4] < floor(p · 2^32), or p is 1
//
// The arithmetic is in float64. Each operation is rounded separately (never fused), and the element is
// rounded to its type once. A uniform number that would round up to hi is the largest number below hi
// instead; if no number is in [lo, hi), it is lo. So Uniform gives the same bits on every device, and
// Normal differs by the rounding of log, cos and sin. A 16-bit type draws the numbers of float32 and
// rounds them. The mask of Dropout is the same for all types.
//
// # Hashes
//
// The hash of n bytes is n plus a sum over their 64-bit words w0, w1, ..., modulo 2^64. A word is eight
// bytes, little-endian; the last word is padded with zeros. Word i contributes output i, counted from 0,
// of the generator SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
// 2014) with the word as the seed:
//
//	z = wi + (i+1)·0x9E3779B97F4A7C15
//	z = (z ^ z>>30) · 0xBF58476D1CE4E5B9
//	z = (z ^ z>>27) · 0x94D049BB133111EB
//	    z ^ z>>31
//
// The order of a sum of integers does not matter, so words can be hashed in parallel. The mapping of a
// word is one to one, so changing one word always changes the hash. Swapping words changes it except
// with probability 2^-64. The hash is not cryptographic.
//
// # Quantized numbers
//
// 8-bit numbers with one scale per [QuantBlock] numbers take a quarter of the memory of Float32, plus
// 1/63 of that. A block is [device.Align] bytes: the scale, a little-endian Float32, and then one byte
// for each number, in two's complement. Let m be the largest magnitude of the finite numbers in the
// block. Then, with each operation rounded separately in Float32,
//
//	scale = m/127, number q = round(x · (127/m)), ties to even
//
// and scale·q approximates x to within m/254. A block with m below 2^-100 is all zeros. The byte -128
// stands for a number that is not finite; it is read as NaN. A partial last block is padded with zeros.
package kernels
