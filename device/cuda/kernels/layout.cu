// CopyStrided copies a box of one tensor to a box of another. Both boxes have their own strides.

// The box has rows × cols elements. Along a row, the operands advance by xstep and ystep elements.
// The other axes, innermost first, give the positions of the rows.
struct Strided {
	u64 dst, src;
	Accum acc;
	u64 rows, cols;
	i64 xstep, ystep;
	u64 wide; // whether rows are contiguous and aligned to 16 bytes in both operands
	u64 rank;
	u64 n[8];
	i64 x[8], y[8];
};

// Verbatim copies an element of any type bit for bit.
struct Verbatim {
	template <class T> __device__ static void put(T *dst, T v, const Accum &) { *dst = v; }
	template <class T> __device__ static void put(Pack<T> &dst, const Pack<T> &v, const Accum &) { dst = v; }
	static const bool reads = false;
};

// Accumulated accumulates an element of a floating-point type.
struct Accumulated {
	template <class T> __device__ static void put(T *dst, T e, const Accum &acc) {
		typedef typename Arith<T>::type A;
		A v = (A)acc.alpha * up(e);
		if ((A)acc.beta != 0) v += (A)acc.beta * up(*dst);
		*dst = down<T>(v);
	}
	template <class T> __device__ static void put(Pack<T> &dst, const Pack<T> &v, const Accum &acc) {
#pragma unroll
		for (int j = 0; j < Pack<T>::N; j++) put(&dst.v[j], v.v[j], acc);
	}
	static const bool reads = true;
};

__device__ inline void place(const Strided &a, u64 i, i64 &x, i64 &y) {
	x = y = 0;
	for (u64 k = 0; k < a.rank; k++) {
		u64 step = i;
		if (k + 1 < a.rank) {
			i /= a.n[k];
			step -= i * a.n[k];
		}
		x += (i64)step * a.x[k];
		y += (i64)step * a.y[k];
	}
}

// strided covers the box with a grid of blocks. Columns are along x.
template <class T, class Put> __device__ inline void strided(const Strided &a) {
	const int N = Pack<T>::N;
	const u64 whole = a.wide ? a.cols / N * N : 0; // the number of columns that are moved in packs
	for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * (u64)blockDim.y) {
		i64 x, y;
		place(a, row, x, y);
		T *dst = (T *)a.dst + x;
		const T *src = (const T *)a.src + y;
		for (u64 col = global_thread() * N; col < whole; col += global_threads() * N) {
			Pack<T> v, d;
			v.load(src + col);
			if (Put::reads && a.acc.beta != 0) d.load(dst + col);
			Put::put(d, v, a.acc);
			d.store(dst + col);
		}
		for (u64 col = whole + global_thread(); col < a.cols; col += global_threads())
			Put::put(dst + (i64)col * a.xstep, src[(i64)col * a.ystep], a.acc);
	}
}

// transpose copies a box that is contiguous along its columns in dst, and along axis 0 of the other
// axes in src. A block of 32 × 8 threads copies one square of 32 × 32 elements at a time through
// shared memory, so that it reads and writes whole cache lines.
template <class T, class Put> __device__ inline void transpose(const Strided &a, T (*square)[33]) {
	const u64 across = (a.cols + 31) / 32, lines = a.n[0], down_ = (lines + 31) / 32;
	const u64 squares = across * down_ * (a.rows / lines);
	for (u64 t = blockIdx.x; t < squares; t += gridDim.x) {
		const u64 c0 = t % across * 32, r0 = t / across % down_ * 32;
		i64 x, y;
		place(a, t / across / down_ * lines, x, y);
		T *dst = (T *)a.dst + x;
		const T *src = (const T *)a.src + y;
		__syncthreads(); // other threads may still read the last square
		for (u32 i = threadIdx.y; i < 32; i += 8) {
			const u64 col = c0 + i, r = r0 + threadIdx.x;
			if (col < a.cols && r < lines) square[i][threadIdx.x] = src[(i64)col * a.ystep + (i64)r * a.y[0]];
		}
		__syncthreads();
		for (u32 i = threadIdx.y; i < 32; i += 8) {
			const u64 col = c0 + threadIdx.x, r = r0 + i;
			if (col < a.cols && r < lines) Put::put(dst + (i64)col + (i64)r * a.x[0], square[threadIdx.x][i], a.acc);
		}
	}
}

#define EXPORT(name, T, Put) \
	extern "C" __global__ void strided_##name(const Strided a) { strided<T, Put>(a); } \
	extern "C" __global__ void transpose_##name(const Strided a) { \
		__shared__ T square[32][33]; \
		transpose<T, Put>(a, square); \
	}
#define EXPORT_FLOAT(name, T) EXPORT(name, T, Accumulated)
EACH_FLOAT(EXPORT_FLOAT)
EXPORT(u8, u8, Verbatim)
EXPORT(u16, u16, Verbatim)
EXPORT(u32, u32, Verbatim)
EXPORT(u64, u64, Verbatim)
