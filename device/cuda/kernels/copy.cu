// Fill, and Copy between two types. Floats are converted through double and integers through i64,
// which represent them exactly, and are rounded once. A float outside an integer type's range
// becomes the nearest number of the type, and a NaN becomes 0.

struct Copy {
	u64 dst, src, n;
	double value; // only for Fill
	u64 wide; // whether both are aligned to four elements, or to 16 bytes
};

template <class T> struct Four {
	static const int bytes = 4 * sizeof(T);
	struct alignas(bytes < 16 ? bytes : 16) type { T v[4]; };
};

// truncate returns v rounded towards zero.
__device__ inline i64 truncate(double v) { return v != v ? 0 : __double2ll_rz(v); }

__device__ inline i64 clamp(i64 v, i64 lo, i64 hi) { return v < lo ? lo : v > hi ? hi : v; }

template <> __device__ inline i64 narrow<i64>(double v) { return truncate(v); }
template <> __device__ inline i32 narrow<i32>(double v) { return (i32)clamp(truncate(v), -2147483648ll, 2147483647ll); }
template <> __device__ inline u8 narrow<u8>(double v) { return (u8)clamp(truncate(v), 0, 255); }

// narrow_int rounds an integer to a float once. It wraps to a narrower integer type.
template <class T> __device__ inline T narrow_int(i64 v) {
	float f = __ll2float_rz(v);
	return down<T>(__float2ll_rz(f) == v ? f : __uint_as_float(__float_as_uint(f) | 1));
}
template <> __device__ inline float narrow_int<float>(i64 v) { return __ll2float_rn(v); }
template <> __device__ inline double narrow_int<double>(i64 v) { return __ll2double_rn(v); }
template <> __device__ inline i64 narrow_int<i64>(i64 v) { return v; }
template <> __device__ inline i32 narrow_int<i32>(i64 v) { return (i32)v; }
template <> __device__ inline u8 narrow_int<u8>(i64 v) { return (u8)v; }

template <class D> __device__ inline D cast(float v) { return narrow<D>(v); }
template <class D> __device__ inline D cast(double v) { return narrow<D>(v); }
template <class D> __device__ inline D cast(f16 v) { return narrow<D>(up(v)); }
template <class D> __device__ inline D cast(bf16 v) { return narrow<D>(up(v)); }
template <class D> __device__ inline D cast(i32 v) { return narrow_int<D>(v); }
template <class D> __device__ inline D cast(i64 v) { return narrow_int<D>(v); }
template <class D> __device__ inline D cast(u8 v) { return narrow_int<D>(v); }

template <class D, class S> __device__ inline void convert(const Copy &a) {
	D *dst = (D *)a.dst;
	const S *src = (const S *)a.src;
	u64 done = 0;
	if (a.wide) {
		typedef typename Four<D>::type D4;
		typedef typename Four<S>::type S4;
		done = a.n / 4 * 4;
		for (u64 i = global_thread() * 4; i < done; i += global_threads() * 4) {
			const S4 s = *(const S4 *)(src + i);
			D4 d;
#pragma unroll
			for (int j = 0; j < 4; j++) d.v[j] = cast<D>(s.v[j]);
			*(D4 *)(dst + i) = d;
		}
	}
	for (u64 i = done + global_thread(); i < a.n; i += global_threads()) dst[i] = cast<D>(src[i]);
}

template <class T> __device__ inline void fill(const Copy &a) {
	T *dst = (T *)a.dst;
	const T v = narrow<T>(a.value);
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
		Pack<T> p;
#pragma unroll
		for (int j = 0; j < N; j++) p.v[j] = v;
		for (u64 i = global_thread() * N; i < done; i += global_threads() * N) p.store(dst + i);
	}
	for (u64 i = done + global_thread(); i < a.n; i += global_threads()) dst[i] = v;
}

#define CONVERT(to, D, from, S) \
	extern "C" __global__ void copy_##to##_##from(const Copy a) { convert<D, S>(a); }
#define EXPORT(to, D) \
	extern "C" __global__ void fill_##to(const Copy a) { fill<D>(a); } \
	CONVERT(to, D, float32, float) CONVERT(to, D, float64, double) CONVERT(to, D, float16, f16) CONVERT(to, D, bfloat16, bf16) \
	CONVERT(to, D, int32, i32) CONVERT(to, D, int64, i64) CONVERT(to, D, uint8, u8)
EACH_FLOAT(EXPORT)
EXPORT(int32, i32)
EXPORT(int64, i64)
EXPORT(uint8, u8)
