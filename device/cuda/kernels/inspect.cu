// NonFinite and Hash. They read an array's memory, whatever its type is, in words of eight bytes.
// The last word is padded with zeros.

struct Inspect {
	u64 dst, src, bytes;
	u64 exponent, sign; // only for NonFinite: the bits of every element in a word
	u64 wide;           // src is aligned to 16 bytes
};

// each_word calls f(i, word i) for each word of this thread's share.
template <class F> __device__ inline void each_word(const Inspect &a, F f) {
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<u64>::N;
		done = a.bytes / 16 * N;
#pragma unroll 4
		for (u64 i = global_thread() * N; i < done; i += global_threads() * N) {
			Pack<u64> p;
			p.load((const u64 *)a.src + i);
#pragma unroll
			for (int j = 0; j < N; j++) f(i + j, p.v[j]);
		}
	}
	const u8 *src = (const u8 *)a.src;
	for (u64 i = done + global_thread(); i * 8 < a.bytes; i += global_threads()) {
		u64 w = 0;
		for (u64 at = i * 8, j = 0; j < 8 && at + j < a.bytes; j++) w |= (u64)src[at + j] << (8 * j);
		f(i, w);
	}
}

// An element is NaN or infinite if all bits of its exponent are set. Adding one to such an exponent
// carries into the sign bit and no further, because the sign bits are masked out.
extern "C" __global__ void nonfinite(const Inspect a) {
	const u64 one = a.sign - a.exponent; // the lowest bit of every exponent
	u64 carried = 0;
	each_word(a, [&](u64, u64 w) { carried |= (w & a.exponent) + one; });
	if (carried & a.sign) *(u8 *)a.dst = 1;
}

// hash adds the hash that package internal/kernels defines. The mix is SplitMix64's.
extern "C" __global__ void hash(const Inspect a) {
	u64 sum = global_thread() == 0 ? a.bytes : 0;
	each_word(a, [&](u64 i, u64 w) {
		u64 z = w + (i + 1) * 0x9E3779B97F4A7C15ull;
		z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
		z = (z ^ z >> 27) * 0x94D049BB133111EBull;
		sum += z ^ z >> 31;
	});
	for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
	if (threadIdx.x % 32 == 0) atomicAdd((u64 *)a.dst, sum);
}
