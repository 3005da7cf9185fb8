// Random numbers by Philox4x32-10. Element e of a sequence depends only on the seed and e, and is
// the same on every device, as package internal/kernels defines. The compiler must not fuse
// operations: each is rounded separately. The 16-bit types use float32's sequence.

struct Random {
	u64 dst, n;
	u64 seed, offset;
	double a, b; // lo and hi-lo, or mean and standard deviation
	double top; // the largest number that Uniform may return
};

struct Words { u32 w[4]; };

__device__ inline Words philox(u64 seed, u64 block, u32 stream) {
	u32 c0 = block, c1 = block >> 32, c2 = stream, c3 = 0;
	u32 k0 = seed, k1 = seed >> 32;
#pragma unroll
	for (int round = 0; round < 10; round++) {
		const u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
		const u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
		c0 = h1 ^ c1 ^ k0;
		c1 = l1;
		c2 = h0 ^ c3 ^ k1;
		c3 = l0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return Words{{c0, c1, c2, c3}};
}

// unit53 returns a number in [0, 1) made of 53 random bits.
__device__ inline double unit53(u32 hi, u32 lo) {
	return (double)(((u64)hi << 32 | lo) >> 11) * 0x1p-53;
}

// affine returns a + b·u.
__device__ inline double affine(double a, double b, double u) { return __dadd_rn(a, __dmul_rn(b, u)); }

// box_muller computes two independent normal numbers from u in (0, 1] and v in [0, 1).
__device__ inline void box_muller(double u, double v, double *z) {
	double r = sqrt(-2 * log(u)), s, c;
	sincos(6.283185307179586 * v, &s, &c);
	z[0] = r * c;
	z[1] = r * s;
}

// A block of four words gives four numbers, or two numbers of 53 bits.
template <class T> struct PerBlock { static const int n = 4; };
template <> struct PerBlock<double> { static const int n = 2; };

template <class T> __device__ inline void uniform_block(const Words &r, double *u) {
	if (sizeof(T) == 8) {
		u[0] = unit53(r.w[0], r.w[1]);
		u[1] = unit53(r.w[2], r.w[3]);
	} else {
		for (int j = 0; j < 4; j++) u[j] = (double)(r.w[j] >> 8) * 0x1p-24;
	}
}

template <class T> __device__ inline void normal_block(const Words &r, double *z) {
	if (sizeof(T) == 8) {
		box_muller(unit53(r.w[0], r.w[1]) + 0x1p-53, unit53(r.w[2], r.w[3]), z);
	} else {
		box_muller(((double)r.w[0] + 1) * 0x1p-32, (double)r.w[1] * 0x1p-32, z);
		box_muller(((double)r.w[2] + 1) * 0x1p-32, (double)r.w[3] * 0x1p-32, z + 2);
	}
}

// draw computes blocks of the sequence in every thread, and stores the elements that lie in dst.
template <class T, bool normal> __device__ inline void draw(const Random &a) {
	const int per = PerBlock<T>::n;
	const u64 first = a.offset / per, last = (a.offset + a.n - 1) / per;
	for (u64 block = first + global_thread(); block <= last; block += global_threads()) {
		const Words r = philox(a.seed, block, normal);
		double v[4];
		if (normal) normal_block<T>(r, v);
		else uniform_block<T>(r, v);
		for (int j = 0; j < per; j++) {
			const u64 i = block * per + j - a.offset; // an element before dst wraps to a large number
			if (i >= a.n) continue;
			const T e = narrow<T>(affine(a.a, a.b, v[j]));
			((T *)a.dst)[i] = !normal && up(e) > a.top ? narrow<T>(a.top) : e;
		}
	}
}

struct Dropout {
	u64 dst, x, n;
	u64 seed, offset, threshold;
	u64 from; // the address of a number that is added to offset, or 0
	double factor;
	Accum acc;
};

// dropout computes blocks of four words in every thread, one word for each element.
template <class T> __device__ inline void dropout(const Dropout &a) {
	typedef typename Arith<T>::type A;
	const A alpha = a.acc.alpha, beta = a.acc.beta, factor = a.factor;
	const T *x = (const T *)a.x;
	T *dst = (T *)a.dst;
	const u64 offset = a.offset + (a.from != 0 ? *(const u64 *)a.from : 0);
	const u64 first = offset / 4, last = (offset + a.n - 1) / 4;
	for (u64 block = first + global_thread(); block <= last; block += global_threads()) {
		const Words r = philox(a.seed, block, 2);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const u64 i = block * 4 + j - offset; // an element before dst wraps to a large number
			if (i >= a.n) continue;
			A v = alpha * (up(x[i]) * (r.w[j] < a.threshold ? A(0) : factor));
			if (beta != 0) v += beta * up(dst[i]);
			dst[i] = down<T>(v);
		}
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void dropout_##name(const Dropout a) { dropout<T>(a); } \
	extern "C" __global__ void uniform_##name(const Random a) { draw<T, false>(a); } \
	extern "C" __global__ void normal_##name(const Random a) { draw<T, true>(a); }
EACH_FLOAT(EXPORT)
