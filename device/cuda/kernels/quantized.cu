// Quantize and Dequantize. A block has a scale followed by 252 numbers of 8 bits, as package
// internal/kernels defines. It is read as 64 words of four bytes, the first of which is the scale.

struct Quant {
	u64 numbers, blocks, n;
	Accum acc; // only for Dequantize
	u64 wide;   // numbers are aligned to 16 bytes
};

static const int WORDS = 64, NUMBERS = 252;
static const int NOT_FINITE = -128;
static const u32 INFINITE = 0x7f800000u, MAGNITUDE = 0x7fffffffu;

// Word is a word of a block, other than the first, with the positions of its four numbers.
struct Word {
	u64 first; // number
	bool whole;

	__device__ Word(const Quant &a, u64 block, int word)
		: first(block * NUMBERS + (word - 1) * 4), whole(a.wide && first + 4 <= a.n) {}

	__device__ void load(const Quant &a, Pack<float> &p) const {
		const float *x = (const float *)a.numbers + first;
		if (whole) {
			p.load(x);
			return;
		}
#pragma unroll
		for (int j = 0; j < 4; j++) p.v[j] = first + j < a.n ? x[j] : 0;
	}
	__device__ void store(const Quant &a, const Pack<float> &p) const {
		float *x = (float *)a.numbers + first;
		if (whole) {
			p.store(x);
			return;
		}
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (first + j < a.n) x[j] = p.v[j];
	}
};

__device__ inline u32 bits(float v) { return __float_as_uint(v) & MAGNITUDE; }

// quantize writes a block with each warp. Every lane writes two words.
extern "C" __global__ void quantize(const Quant a) {
	const int lane = threadIdx.x % 32;
	const u64 blocks = (a.n + NUMBERS - 1) / NUMBERS;
	for (u64 b = global_thread() / 32; b < blocks; b += global_threads() / 32) {
		Pack<float> p[2];
		u32 top = 0; // without the sign, bit patterns have the same order as numbers
#pragma unroll
		for (int k = 0; k < 2; k++) {
			const int word = lane + 32 * k;
			if (word == 0) continue;
			Word(a, b, word).load(a, p[k]);
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const u32 m = bits(p[k].v[j]);
				if (m < INFINITE && m > top) top = m;
			}
		}
#pragma unroll
		for (int other = 16; other > 0; other /= 2) {
			const u32 m = __shfl_xor_sync(0xffffffffu, top, other);
			if (m > top) top = m;
		}
		const float most = __uint_as_float(top);
		const bool none = most < 7.888609052210118e-31f; // 2^-100
		const float scale = none ? 0 : __fdiv_rn(most, 127), inverse = none ? 0 : __fdiv_rn(127, most);
		u32 *out = (u32 *)a.blocks + b * WORDS;
#pragma unroll
		for (int k = 0; k < 2; k++) {
			const int word = lane + 32 * k;
			u32 w = __float_as_uint(scale);
			if (word > 0) {
				w = 0;
#pragma unroll
				for (int j = 0; j < 4; j++) {
					const float v = p[k].v[j];
					// Adding 1.5·2^23 rounds to an integer, which is then in the lowest bits.
					const u32 q = bits(v) >= INFINITE ? (u32)NOT_FINITE : __float_as_uint(__fadd_rn(__fmul_rn(v, inverse), 12582912.0f));
					w |= (q & 0xff) << (8 * j);
				}
			}
			out[word] = w;
		}
	}
}

// dequantize reads one word in each thread.
extern "C" __global__ void dequantize(const Quant a) {
	const float alpha = a.acc.alpha, beta = a.acc.beta;
	const u64 words = (a.n + NUMBERS - 1) / NUMBERS * WORDS;
	for (u64 i = global_thread(); i < words; i += global_threads()) {
		const u32 *block = (const u32 *)a.blocks + i / WORDS * WORDS;
		const int word = i % WORDS;
		if (word == 0) continue;
		const Word at(a, i / WORDS, word);
		const float scale = __uint_as_float(block[0]);
		const u32 w = block[word];
		Pack<float> p;
		if (beta != 0) at.load(a, p);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const int q = (signed char)(w >> (8 * j));
			float v = alpha * (q == NOT_FINITE ? __uint_as_float(0x7fc00000u) : scale * q);
			if (beta != 0) v += beta * p.v[j];
			p.v[j] = v;
		}
		at.store(a, p);
	}
}
