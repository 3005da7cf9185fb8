// Compare and MaskedCopy, of two operands broadcast to the result's shape, and
// FindExtreme.

// The result has rows × cols elements. Along a row, an operand is contiguous (step 1) or a single
// number (step 0). The other axes, innermost first, give the positions of its rows.
struct Binary {
	u64 dst, x, y;
	u64 rows, cols;
	i32 xstep, ystep;
	i32 op, wide;
	u64 rank;
	u64 n[8], xstride[8], ystride[8];
};

// each_pair calls f(i, x, y) for every element i of the result, with the indices of its operands.
template <class F> __device__ inline void each_pair(const Binary &a, F f) {
	for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * (u64)blockDim.y) {
		u64 x = 0, y = 0, rest = row;
		for (u64 k = 0; k < a.rank; k++) {
			u64 i = rest;
			if (k + 1 < a.rank) {
				rest /= a.n[k];
				i -= rest * a.n[k];
			}
			x += i * a.xstride[k];
			y += i * a.ystride[k];
		}
		for (u64 col = global_thread(); col < a.cols; col += global_threads())
			f(row * a.cols + col, x + col * a.xstep, y + col * a.ystep);
	}
}

// number reads an element of any type exactly.
template <class T> __device__ inline typename Arith<T>::type number(T v) { return up(v); }
__device__ inline i64 number(i64 v) { return v; }
__device__ inline i32 number(i32 v) { return v; }
__device__ inline i32 number(u8 v) { return v; }

// The numbers of device.Comparison.
enum { EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL };

template <class T> __device__ inline void compare(const Binary &a) {
	const T *xs = (const T *)a.x, *ys = (const T *)a.y;
	u8 *dst = (u8 *)a.dst;
	each_pair(a, [=](u64 i, u64 x, u64 y) {
		const auto v = number(xs[x]), w = number(ys[y]);
		bool holds = false;
		switch (a.op) {
		case EQUAL: holds = v == w; break;
		case NOT_EQUAL: holds = v != w; break;
		case LESS: holds = v < w; break;
		case LESS_EQUAL: holds = v <= w; break;
		case GREATER: holds = v > w; break;
		case GREATER_EQUAL: holds = v >= w; break;
		}
		dst[i] = holds;
	});
}

// masked_copy: x holds the mask, y the elements.
template <class T> __device__ inline void masked_copy(const Binary &a) {
	const u8 *mask = (const u8 *)a.x;
	const T *ys = (const T *)a.y;
	T *dst = (T *)a.dst;
	each_pair(a, [=](u64 i, u64 x, u64 y) {
		if (mask[x]) dst[i] = ys[y];
	});
}

struct Find {
	u64 values, indices, src; // values or indices may be 0: not computed
	u64 from;                 // the indices of src's elements; 0 means their positions
	u64 outer, n, inner;
	u64 chunk, chunks;
	u64 smallest;
};

// find_extreme processes a chunk of the middle axis per thread: the results are [outer chunks
// inner].
template <class T> __device__ inline void find_extreme(const Find &a) {
	typedef typename Arith<T>::type A;
	const u64 results = a.outer * a.chunks * a.inner;
	for (u64 r = global_thread(); r < results; r += global_threads()) {
		const u64 k = r % a.inner, chunk = r / a.inner % a.chunks, o = r / a.inner / a.chunks;
		const u64 lo = chunk * a.chunk, hi = min(lo + a.chunk, a.n);
		const u64 at = o * a.n * a.inner + k;
		const T *src = (const T *)a.src + at;
		u64 where = lo;
		A best = up(src[lo * a.inner]);
		for (u64 i = lo + 1; i < hi; i++) {
			const A v = up(src[i * a.inner]);
			// A NaN is more extreme than any number.
			if (best == best && (v != v || (a.smallest ? v < best : v > best))) {
				best = v;
				where = i;
			}
		}
		if (a.values) ((T *)a.values)[r] = src[where * a.inner];
		if (a.indices) ((u64 *)a.indices)[r] = a.from ? ((const u64 *)a.from)[at + where * a.inner] : where;
	}
}

#define COMPARE(name, T) \
	extern "C" __global__ void compare_##name(const Binary a) { compare<T>(a); }
#define MASKED_COPY(name, T) \
	extern "C" __global__ void masked_copy_##name(const Binary a) { masked_copy<T>(a); }
#define FIND_EXTREME(name, T) \
	extern "C" __global__ void find_extreme_##name(const Find a) { find_extreme<T>(a); }
EACH_FLOAT(COMPARE)
COMPARE(int32, i32)
COMPARE(int64, i64)
COMPARE(uint8, u8)
MASKED_COPY(u8, u8)
MASKED_COPY(u16, u16)
MASKED_COPY(u32, u32)
MASKED_COPY(u64, u64)
EACH_FLOAT(FIND_EXTREME)
