// Softmax and its logarithm along lines of n elements with stride step. The threads of a block along x share a
// line: one, a warp, or the block. Each thread sums in float, and sums over threads are in double, in an order
// that depends only on the shapes.

struct Softmax {
	u64 dst, x, y; // for the gradient, x is the gradient of the result y
	u64 lines, n, step;
	Accum acc;
	i32 log, wide; // wide: step is 1, lines are aligned to 16 bytes and whole packs
};

__device__ inline float exp_(float v) { return expf(v); }
__device__ inline double exp_(double v) { return exp(v); }
__device__ inline float expm1_(float v) { return expm1f(v); }
__device__ inline double expm1_(double v) { return expm1(v); }

// line_sum adds v over the threads that share a line.
__device__ inline double line_sum(double v) { return blockDim.x == 1 ? v : block_sum(v); }

// line_max is the largest v of the threads that share a line. No v is NaN.
template <class A> __device__ inline A line_max(A v) {
	__shared__ A part[32];
	if (blockDim.x == 1) return v;
	for (int lane = 16; lane > 0; lane /= 2) {
		const A o = __shfl_xor_sync(0xffffffffu, v, lane);
		v = o > v ? o : v;
	}
	if (blockDim.x <= 32) return v;
	__syncthreads(); // other threads may still read part from the last call
	if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
	__syncthreads();
	v = part[0];
	for (int i = 1; i < blockDim.x / 32; i++) v = part[i] > v ? part[i] : v;
	return v;
}

// each_line calls f(line) for the lines of this thread.
template <class F> __device__ inline void each_line(const Softmax &a, F f) {
	for (u64 l = blockIdx.x * (u64)blockDim.y + threadIdx.y; l < a.lines; l += gridDim.x * (u64)blockDim.y) f(l / a.step * a.n * a.step + l % a.step);
}

template <class T> __device__ inline void softmax(const Softmax &a) {
	typedef typename Arith<T>::type A;
	const A none = -__longlong_as_double(0x7ff0000000000000ll); // -∞
	each_line(a, [&](u64 at) {
		const T *x = (const T *)a.x + at;
		T *dst = (T *)a.dst + at;
		// s is the sum so far of e^(v - top) without the term of top, which is 1, so that much smaller terms are
		// not lost in float. A NaN or +∞ makes s NaN.
		A top = none, s = 0;
		auto add = [&top, &s, none](u64, A v) {
			if (v > top) {
				s = (s + 1) * exp_(top - v) + (v - v);
				top = v;
			} else if (v != none) {
				s += exp_(v - top);
			}
		};
		if (a.step == 1)
			each_of(x, threadIdx.x, blockDim.x, a.n, a.wide, add);
		else
			for (u64 j = threadIdx.x; j < a.n; j += blockDim.x) add(j, up(x[j * a.step]));
		const A all = line_max(top);
		// Terms equal to 1 are counted separately from the rest of the sum, so that its logarithm stays accurate.
		const bool is_top = top == all;
		const double rest = line_sum(is_top || top == none ? (double)s : (1 + (double)s) * exp_(top - all));
		const double tops = line_sum(is_top);
		const A total = rest + tops, log_sum = log1p(rest + (tops - 1));
		// Adding all and log_sum first would lose small differences.
		auto value = [&](A v) { return down<T>(a.log ? v - all - log_sum : exp_(v - all) / total); };
		if (a.wide) {
			const int N = Pack<T>::N;
			for (u64 j = threadIdx.x * N; j < a.n; j += blockDim.x * N) {
				Pack<T> p;
				p.load(x + j);
#pragma unroll
				for (int i = 0; i < N; i++) p.v[i] = value(up(p.v[i]));
				p.store(dst + j);
			}
		} else {
			for (u64 j = threadIdx.x; j < a.n; j += blockDim.x) dst[j * a.step] = value(up(x[j * a.step]));
		}
	});
}

// log_gradient is g - e^y·d, accurate also if e^y is almost 1 and g almost d.
template <class A> __device__ inline A log_gradient(A g, A y, A d) {
	if (!(y > A(-0.5))) return g - exp_(y) * d;
	const A m = expm1_(y);
	return -m * g - (m + 1) * (d - g);
}

// softmax_grad computes y·(g - d), with d the sum of g·y along the line; for the logarithm g - e^y·d, with d the
// sum of g.
template <class T> __device__ inline void softmax_grad(const Softmax &a) {
	typedef typename Arith<T>::type A;
	const A alpha = a.acc.alpha, beta = a.acc.beta;
	each_line(a, [&](u64 at) {
		const T *g = (const T *)a.x + at, *y = (const T *)a.y + at;
		T *dst = (T *)a.dst + at;
		A s = 0;
		const int N = Pack<T>::N;
		auto term = [&](A g, A y) { return a.log ? g : g * y; };
		if (a.wide) {
			for (u64 j = threadIdx.x * N; j < a.n; j += blockDim.x * N) {
				Pack<T> pg, py;
				pg.load(g + j);
				py.load(y + j);
#pragma unroll
				for (int i = 0; i < N; i++) s += term(up(pg.v[i]), up(py.v[i]));
			}
		} else {
			for (u64 j = threadIdx.x; j < a.n; j += blockDim.x) s += term(up(g[j * a.step]), up(y[j * a.step]));
		}
		const A d = line_sum(s);
		auto value = [&](A g, A y, T old) {
			A v = alpha * (a.log ? log_gradient(g, y, d) : y * (g - d));
			if (beta != 0) v += beta * up(old);
			return down<T>(v);
		};
		if (a.wide) {
			for (u64 j = threadIdx.x * N; j < a.n; j += blockDim.x * N) {
				Pack<T> pg, py, pd;
				pg.load(g + j);
				py.load(y + j);
				if (beta != 0) pd.load(dst + j);
#pragma unroll
				for (int i = 0; i < N; i++) pd.v[i] = value(up(pg.v[i]), up(py.v[i]), pd.v[i]);
				pd.store(dst + j);
			}
		} else {
			for (u64 j = threadIdx.x; j < a.n; j += blockDim.x) {
				const u64 e = j * a.step;
				dst[e] = value(up(g[e]), up(y[e]), beta != 0 ? dst[e] : T());
			}
		}
	});
}

#define EXPORT(name, T) \
	extern "C" __global__ void softmax_##name(const Softmax a) { softmax<T>(a); } \
	extern "C" __global__ void softmax_grad_##name(const Softmax a) { softmax_grad<T>(a); }
EACH_FLOAT(EXPORT)
