// This text precedes every kernel source. It includes nothing: NVRTC knows CUDA's own functions,
// and a toolkit's headers may be missing.
//
// A kernel takes one structure by value, whose fields have the layout of the Go structure of the
// same name. Addresses are passed as u64.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// These functions convert 16-bit types given as bits. The emulation on hosts defines functions with the
// same names.
#ifdef __CUDACC__
__device__ inline float half_to_float(u16 h) {
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}
__device__ inline u16 float_to_half(float v) {
	u16 h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
	return h;
}
__device__ inline u16 float_to_bfloat(float v) {
	u16 h;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
	return h;
}
#endif

// The 16-bit types are stored as bits. Arithmetic on them is in float.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// FLOAT32(X) expands to X(float32, float). FLOAT64, FLOAT16 and BFLOAT16 do the same for their types,
// EACH_FLOAT for all four. A kernel's name ends in its type's name in device.DType: axpby_float32.
//
// Some sources are compiled once for each type: the large ones, and those of gpuDevice.Compile. Each
// time, ONLY_TYPE is defined as the type's number in device.DType. The macros of the other types then
// expand to nothing.
#if !defined(ONLY_TYPE) || ONLY_TYPE == 1
#define FLOAT32(X) X(float32, float)
#else
#define FLOAT32(X)
#endif
#if !defined(ONLY_TYPE) || ONLY_TYPE == 2
#define FLOAT64(X) X(float64, double)
#else
#define FLOAT64(X)
#endif
#if !defined(ONLY_TYPE) || ONLY_TYPE == 3
#define FLOAT16(X) X(float16, f16)
#else
#define FLOAT16(X)
#endif
#if !defined(ONLY_TYPE) || ONLY_TYPE == 4
#define BFLOAT16(X) X(bfloat16, bf16)
#else
#define BFLOAT16(X)
#endif
#define EACH_16_BIT(X) FLOAT16(X) BFLOAT16(X)
#define EACH_FLOAT(X) FLOAT32(X) FLOAT64(X) EACH_16_BIT(X)

// Arith<T>::type is the type in which elements of type T are computed.
template <class T> struct Arith { typedef float type; };
template <> struct Arith<double> { typedef double type; };

// up converts an element to its arithmetic type. The conversion is exact.
__device__ inline float up(float v) { return v; }
__device__ inline double up(double v) { return v; }
__device__ inline float up(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
__device__ inline float up(f16 v) { return half_to_float(v.bits); }

// down rounds the result of arithmetic to an element, to nearest, ties to even.
template <class T> __device__ inline T down(typename Arith<T>::type v) { return v; }
template <> __device__ inline bf16 down<bf16>(float v) { return {float_to_bfloat(v)}; }
template <> __device__ inline f16 down<f16>(float v) { return {float_to_half(v)}; }

// pack2 rounds two numbers to 16-bit elements, the first to the lower half.
template <class T> __device__ inline u32 pack2(float low, float high) { return (u32)down<T>(high).bits << 16 | down<T>(low).bits; }
#ifdef __CUDACC__
template <> __device__ inline u32 pack2<bf16>(float low, float high) {
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}
template <> __device__ inline u32 pack2<f16>(float low, float high) {
	u32 r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}
#endif

// odd converts v to float and rounds to odd if v is inexact. Rounding the result again, to a type
// of at most 22 bits, is then the same as rounding v itself.
__device__ inline float odd(double v) {
	float f = __double2float_rz(v);
	return (double)f == v || v != v ? f : __uint_as_float(__float_as_uint(f) | 1);
}

// narrow rounds a double to an element in one rounding.
template <class T> __device__ inline T narrow(double v) { return down<T>(odd(v)); }
template <> __device__ inline float narrow<float>(double v) { return __double2float_rn(v); }
template <> __device__ inline double narrow<double>(double v) { return v; }

// Accum is device.Accum: dst = alpha·value + beta·dst. With beta 0, dst is not read.
struct Accum { double alpha, beta; };

template <class T> __device__ inline void accumulate(T *dst, const Accum &acc, double value) {
	typedef typename Arith<T>::type A;
	A v = (A)acc.alpha * (A)value;
	if ((A)acc.beta != 0) v += (A)acc.beta * up(*dst);
	*dst = down<T>(v);
}

// Pack holds the 16 bytes that a thread moves at once.
template <class T> struct Pack {
	static const int N = 16 / sizeof(T);
	union {
		uint4 raw;
		T v[N];
	};
	__device__ void load(const T *p) { raw = *(const uint4 *)p; }
	__device__ void store(T *p) const { *(uint4 *)p = raw; }
};

// Packs holds N elements in whole packs.
template <class T, int N> struct Packs {
	static const int each = Pack<T>::N;
	Pack<T> p[N / each];
	__device__ T &operator[](int i) { return p[i / each].v[i % each]; }
	__device__ void load(const T *from) {
#pragma unroll
		for (int i = 0; i < N / each; i++) p[i].load(from + i * each);
	}
	__device__ void store(T *to) const {
#pragma unroll
		for (int i = 0; i < N / each; i++) p[i].store(to + i * each);
	}
};

// raised reports whether this thread's share of n flags, which are bytes, has one that is set.
// __syncthreads_or combines the answers of a block's threads.
__device__ inline bool raised(u64 flags, u64 n) {
	bool any = false;
	for (u64 i = threadIdx.x; i < n; i += blockDim.x) any |= ((const u8 *)flags)[i] != 0;
	return any;
}

// each_of calls f(i, element i) for i = first, first + step, ... below n. With wide it does so for
// packs: p is aligned and the n elements are whole packs. Several loads are in flight at a time.
template <class T, class F> __device__ inline void each_of(const T *p, u64 first, u64 step, u64 n, bool wide, F f) {
	const int N = Pack<T>::N, ahead = 4;
	if (!wide) {
#pragma unroll 4
		for (u64 i = first; i < n; i += step) f(i, up(p[i]));
		return;
	}
	step *= N;
	for (u64 i = first * N; i < n; i += ahead * step) {
		Pack<T> q[ahead];
#pragma unroll
		for (int a = 0; a < ahead; a++)
			if (i + a * step < n) q[a].load(p + i + a * step);
#pragma unroll
		for (int a = 0; a < ahead; a++)
			if (i + a * step < n)
#pragma unroll
				for (int j = 0; j < N; j++) f(i + a * step + j, up(q[a].v[j]));
	}
}

// divide returns i / by. It divides in 32 bits if possible, which is faster.
__device__ inline u64 divide(u64 i, u64 by) {
	if (by == 1) return i;
	return (i | by) >> 32 ? i / by : (u32)i / (u32)by;
}

// A kernel that the host launches with launchEarly may start before the kernel in front of it has ended. It must call
// await_earlier in every block. Only then does memory hold what earlier kernels have written. Before, the kernel may read
// what launchEarly was told. start_next lets the kernel behind start, if that is launched with launchEarly too, once all
// blocks have called start_next or ended. It must come after await_earlier.
__device__ inline void await_earlier() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void start_next() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// prefetch starts to bring the lines of n bytes from an address into the L2 cache.
__device__ inline void prefetch(const void *from, u32 n) {
#ifdef __CUDACC__
	for (u32 at = 0; at < n; at += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)from + at));
#endif
}

__device__ inline u64 global_thread() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
__device__ inline u64 global_threads() { return gridDim.x * (u64)blockDim.x; }

// Parts are the parameters that a kernel of an optimizer updates. Block b works on the last part that
// starts at block b or before.
const int MAX_PARTS = 48;
template <class P> struct Parts {
	i32 count;
	u32 blocks, starts[MAX_PARTS];
	P parts[MAX_PARTS];
};

// Share is a thread's share of a part: the thread's number among those that work on the part, and their
// number.
template <class P> struct Share {
	P part;
	u64 thread, threads;

	__device__ Share(const Parts<P> &all) {
		i32 i = 0;
		while (i + 1 < all.count && all.starts[i + 1] <= blockIdx.x) i++;
		const u32 start = all.starts[i], end = i + 1 < all.count ? all.starts[i + 1] : all.blocks;
		part = all.parts[i];
		thread = (blockIdx.x - start) * (u64)blockDim.x + threadIdx.x;
		threads = (end - start) * (u64)blockDim.x;
	}
};

// warp_sum adds v over the lanes of a full warp in a fixed order. Every lane gets the sum.
__device__ inline double warp_sum(double v) {
	for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
	return v;
}

// block_sum adds v over a block of whole warps, with threads along x, in a fixed order. Every
// thread gets the sum.
__device__ inline double block_sum(double v) {
	__shared__ double part[32];
	v = warp_sum(v);
	if (blockDim.x <= 32) return v;
	__syncthreads(); // other threads may still read part from the last call
	if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
	__syncthreads();
	v = 0;
	for (int i = 0; i < blockDim.x / 32; i++) v += part[i];
	return v;
}
