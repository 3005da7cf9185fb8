// Sum over some axes, in float64 and in an order that depends only on the shapes. The terms of an output are divided
// into chunks. If there are several, sum_runs or sum_columns write each chunk's sum to part[output][chunk], and fold
// adds these.

struct Axes {
	u64 rank;
	u64 n[8], stride[8]; // innermost first
};

struct Sum {
	u64 dst, src, part;
	u64 outputs, terms; // terms per output
	u64 width;          // outputs side by side in a row of src; 1 if rows are summed
	u64 chunk, chunks;  // terms per chunk, chunks per output
	Accum acc;
	u64 wide; // rows are aligned to 16 bytes
	Axes kept, reduced;
};

__device__ inline u64 offset(const Axes &s, u64 i) {
	u64 at = 0;
	for (u64 k = 0; k < s.rank; k++) {
		u64 rest = 0, step = i;
		if (k + 1 < s.rank) {
			rest = i / s.n[k];
			step = i - rest * s.n[k];
		}
		at += step * s.stride[k];
		i = rest;
	}
	return at;
}

// store accumulates v into an output. It multiplies by alpha before it rounds, so that a mean is rounded once, and
// does not overflow with its sum.
template <class T> __device__ inline void store(const Sum &a, u64 out, double v) { accumulate((T *)a.dst + out, {1, a.acc.beta}, a.acc.alpha * v); }

template <class T> __device__ inline void finish(const Sum &a, u64 out, u64 chunk, double v) {
	if (a.chunks == 1)
		store<T>(a, out, v);
	else
		((double *)a.part)[out * a.chunks + chunk] = v;
}

// sum_runs sums along rows of src. The threads along x share an output: either each warp or the whole block computes
// one. Chunks are along the grid's y.
template <class T> __device__ inline void sum_runs(const Sum &a) {
	const int N = Pack<T>::N;
	const u64 chunk = blockIdx.y, from = chunk * a.chunk, to = min(from + a.chunk, a.terms);
	for (u64 out = blockIdx.x * (u64)blockDim.y + threadIdx.y; out < a.outputs; out += gridDim.x * (u64)blockDim.y) {
		const T *src = (const T *)a.src + offset(a.kept, out);
		double v = 0;
		auto add = [&v](u64, typename Arith<T>::type x) { v += x; };
		if (a.reduced.rank == 1) { // one run
			const u64 whole = a.wide ? (to - from) / N * N : 0;
			each_of(src + from, threadIdx.x, blockDim.x, whole, true, add);
			each_of(src + from, whole + threadIdx.x, blockDim.x, to - from, false, add);
		} else {
			for (u64 t = from + threadIdx.x; t < to; t += blockDim.x) v += up(src[offset(a.reduced, t)]);
		}
		v = block_sum(v);
		if (threadIdx.x == 0) finish<T>(a, out, chunk, v);
	}
}

// Row is a thread's N columns of a row: a pack, or one.
template <class T, int N> struct Row {
	Pack<T> p;
	__device__ void load(const T *at) { p.load(at); }
	__device__ void add(double *v) const {
#pragma unroll
		for (int j = 0; j < N; j++) v[j] += up(p.v[j]);
	}
};
template <class T> struct Row<T, 1> {
	T e;
	__device__ void load(const T *at) { e = *at; }
	__device__ void add(double *v) const { v[0] += up(e); }
};

// sum_columns sums rows of src. A block of 32 × 8 threads processes a tile of columns, and each thread every eighth
// row of the chunk. Tiles are along the grid's x, chunks along y, and dst's other axes along z.
template <class T, int N> __device__ inline void sum_columns(const Sum &a, double (*part)[32 * Pack<T>::N]) {
	const u64 col = (blockIdx.x * 32ull + threadIdx.x) * N;
	const u64 chunk = blockIdx.y, from = chunk * a.chunk, to = min(from + a.chunk, a.terms);
	for (u64 row = blockIdx.z; row < a.outputs / a.width; row += gridDim.z) {
		double v[N] = {};
		if (col < a.width) {
			const T *src = (const T *)a.src + offset(a.kept, row) + col;
			u64 t = from + threadIdx.y;
			if (a.reduced.rank == 1) { // rows at equal distances: several loads in flight
				const int ahead = 4;
				const u64 stride = a.reduced.stride[0];
				for (; t + (ahead - 1) * 8 < to; t += ahead * 8) {
					Row<T, N> r[ahead];
#pragma unroll
					for (int i = 0; i < ahead; i++) r[i].load(src + (t + i * 8) * stride);
#pragma unroll
					for (int i = 0; i < ahead; i++) r[i].add(v);
				}
			}
			for (; t < to; t += 8) {
				Row<T, N> r;
				r.load(src + offset(a.reduced, t));
				r.add(v);
			}
		}
		__syncthreads(); // other threads may still read part from the last row
		for (int j = 0; j < N; j++) part[threadIdx.y][threadIdx.x * N + j] = v[j];
		__syncthreads();
		for (u32 i = threadIdx.y * 32 + threadIdx.x; i < 32 * N; i += 256) {
			const u64 c = blockIdx.x * 32ull * N + i;
			double s = 0;
			for (int y = 0; y < 8; y++) s += part[y][i];
			if (c < a.width) finish<T>(a, row * a.width + c, chunk, s);
		}
	}
}

// fold uses one warp per output.
template <class T> __device__ inline void fold(const Sum &a) {
	const double *part = (const double *)a.part;
	for (u64 out = blockIdx.x * (u64)blockDim.y + threadIdx.y; out < a.outputs; out += gridDim.x * (u64)blockDim.y) {
		double v = 0;
		for (u64 c = threadIdx.x; c < a.chunks; c += 32) v += part[out * a.chunks + c];
		v = warp_sum(v);
		if (threadIdx.x == 0) store<T>(a, out, v);
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void sum_runs_##name(const Sum a) { sum_runs<T>(a); } \
	extern "C" __global__ void sum_columns_##name(const Sum a) { \
		__shared__ double part[8][32 * Pack<T>::N]; \
		if (a.wide) sum_columns<T, Pack<T>::N>(a, part); \
		else sum_columns<T, 1>(a, part); \
	} \
	extern "C" __global__ void fold_##name(const Sum a) { fold<T>(a); }
EACH_FLOAT(EXPORT)
