// Binary: two operands broadcast to the result's shape.

// The result has rows × cols elements. Along a row, an operand is contiguous (step 1) or a single
// number (step 0). The other axes, innermost first, give the positions of its rows.
struct Binary {
	u64 dst, x, y;
	u64 rows, cols;
	i32 xstep, ystep;
	i32 op, wide; // wide: rows are aligned to 16 bytes
	u64 rank;
	u64 n[8], xstride[8], ystride[8];
};

// These are the values of kernels.BinaryOp.
enum { ADD, SUB, MUL, DIV };

template <class T> __device__ inline void spread(Pack<T> &p, const T *from, i32 step, u64 col) {
	if (step) {
		p.load(from + col);
		return;
	}
	const T v = *from;
#pragma unroll
	for (int j = 0; j < Pack<T>::N; j++) p.v[j] = v;
}

// combine covers the result with a grid of blocks. Columns are along x.
template <class T, class F> __device__ inline void combine(const Binary &a, F f) {
	const int N = Pack<T>::N;
	const u64 wide = a.wide ? a.cols / N * N : 0; // the number of columns that are moved in packs
	for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * (u64)blockDim.y) {
		T *dst = (T *)a.dst + row * a.cols;
		const T *x = (const T *)a.x, *y = (const T *)a.y;
		u64 rest = row;
		for (u64 k = 0; k < a.rank; k++) {
			u64 i = rest;
			if (k + 1 < a.rank) {
				rest /= a.n[k];
				i -= rest * a.n[k];
			}
			x += i * a.xstride[k];
			y += i * a.ystride[k];
		}
		for (u64 col = global_thread() * N; col < wide; col += global_threads() * N) {
			Pack<T> px, py;
			spread(px, x, a.xstep, col);
			spread(py, y, a.ystep, col);
#pragma unroll
			for (int j = 0; j < N; j++) px.v[j] = down<T>(f(up(px.v[j]), up(py.v[j])));
			px.store(dst + col);
		}
		for (u64 col = wide + global_thread(); col < a.cols; col += global_threads())
			dst[col] = down<T>(f(up(x[col * a.xstep]), up(y[col * a.ystep])));
	}
}

template <class T> __device__ inline void binary(const Binary &a) {
	typedef typename Arith<T>::type A;
	switch (a.op) {
	case ADD: combine<T>(a, [](A x, A y) { return x + y; }); break;
	case SUB: combine<T>(a, [](A x, A y) { return x - y; }); break;
	case MUL: combine<T>(a, [](A x, A y) { return x * y; }); break;
	case DIV: combine<T>(a, [](A x, A y) { return x / y; }); break;
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void binary_##name(const Binary a) { binary<T>(a); }
EACH_FLOAT(EXPORT)
