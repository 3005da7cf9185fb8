// Package kernels lists the operations that a device implements for the packages of this
// module: autograd, optim, ddp and others. [Of] gives the operations of a device. Package
// device publishes the few that programs outside this module call.
//
// # Random numbers
//
// Random numbers are a function of the seed and an element's index
// e = offset+i in its sequence, the same on every device. Philox4x32-10
// (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) with the
// key (seed, seed>>32) and the counter (b, b>>32, stream, 0), where stream is 0
// for Uniform, 1 for Normal and 2 for Dropout, gives four 32-bit words w0..w3 of block b. Then
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
// in float64, each operation rounded by itself (never fused), and the element
// rounded to its type once. A uniform number that rounds up to hi becomes the
// largest number below it; where no number is in [lo, hi) it is lo. Uniform is
// therefore the same bit for bit on every device; Normal up to the rounding of
// log, cos and sin. A 16-bit type draws as float32 does and is rounded. Dropout's mask
// is the same for all types.
//
// # Hashes
//
// The hash of n bytes is, modulo 2^64, n plus a sum over their words w0, w1, ...:
// eight bytes each, little-endian, the last filled up with zeros. Word i
// contributes output i, counted from 0, of the generator SplitMix64 (Steele, Lea
// and Flood, "Fast Splittable Pseudorandom Number Generators", 2014) seeded with it:
//
//	z = wi + (i+1)·0x9E3779B97F4A7C15
//	z = (z ^ z>>30) · 0xBF58476D1CE4E5B9
//	z = (z ^ z>>27) · 0x94D049BB133111EB
//	    z ^ z>>31
//
// A sum of integers does not depend on its order, so words can be hashed in
// parallel; a word that changes always changes the hash, for the mapping is one
// to one, and words that change places do but for a chance of 2^-64. It is no
// protection against somebody who means to collide.
//
// # Quantised numbers
//
// Numbers of 8 bits with a scale for each [QuantBlock] of them take a quarter of
// the memory of Float32, and 1/63 more. A block is [device.Align] bytes: the scale, a
// Float32, little-endian, then a byte for each number, in two's complement. With m
// the largest magnitude in the block among the finite numbers, each operation
// rounded by itself in Float32,
//
//	scale = m/127, number q = round(x · (127/m)), ties to even
//
// stands for scale·q: x to within m/254. A block with m below 2^-100 is zeros. The
// byte -128 stands for what is not finite, and is read as NaN. What a last block
// lacks in numbers is zeros.
package kernels
