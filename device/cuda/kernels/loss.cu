// Mean squared error and cross-entropy. Each block adds in float64 and writes its sum to part; mean adds these sums.
// The grid, and so the order of additions, depends only on the shapes.

struct Loss {
	u64 dst, part, parts;
	u64 x, y, labels, g;
	u64 rows, cols; // of x
	Accum acc;
	u64 wide; // whether the rows that a thread moves in packs are aligned to 16 bytes and consist of whole packs
};

// squares sums (x-y)² over the block's share of the elements.
template <class T> __device__ inline void squares(const Loss &a) {
	const T *x = (const T *)a.x, *y = (const T *)a.y;
	const int N = Pack<T>::N;
	const u64 n = a.rows * a.cols, whole = a.wide ? n : 0;
	double s = 0;
#pragma unroll 2
	for (u64 i = global_thread() * N; i < whole; i += global_threads() * N) {
		Pack<T> px, py;
		px.load(x + i);
		py.load(y + i);
#pragma unroll
		for (int j = 0; j < N; j++) {
			double d = (double)up(px.v[j]) - (double)up(py.v[j]);
			s += d * d;
		}
	}
#pragma unroll 4
	for (u64 i = whole + global_thread(); i < n; i += global_threads()) {
		double d = (double)up(x[i]) - (double)up(y[i]);
		s += d * d;
	}
	s = block_sum(s);
	if (threadIdx.x == 0) ((double *)a.part)[blockIdx.x] = s;
}

// mean divides the sum of parts by rows. One block runs it.
template <class T> __device__ inline void mean(const Loss &a) {
	double s = 0;
	for (u64 i = threadIdx.x; i < a.parts; i += blockDim.x) s += ((const double *)a.part)[i];
	s = block_sum(s);
	if (threadIdx.x == 0) *(T *)a.dst = narrow<T>(s / (double)a.rows);
}

__device__ inline float exp_(float v) { return expf(v); }
__device__ inline double exp_(double v) { return exp(v); }
__device__ inline float expm1_(float v) { return expm1f(v); }
__device__ inline double expm1_(double v) { return expm1(v); }
__device__ inline float log1p_(float v) { return log1pf(v); }
__device__ inline double log1p_(double v) { return log1p(v); }

// block_max returns the largest v in a block of whole warps. It may ignore a NaN.
template <class A> __device__ inline A block_max(A v) {
	__shared__ A part[32];
	for (int lane = 16; lane > 0; lane /= 2) {
		A o = __shfl_xor_sync(0xffffffffu, v, lane);
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

// Exponential computes e^(v - shift - rest), for elements of type T. v - shift is exact where it is small.
template <class T> struct Exponential {
	typedef typename Arith<T>::type A;
	A shift, rest;
	__device__ Exponential(A shift, A rest = 0) : shift(shift), rest(rest) {}
	__device__ A operator()(A v) const { return exp_(v - shift - rest); }
};

// Of 16-bit elements it is 2^((v - shift)·log2(e)) by two instructions.
#ifdef __CUDACC__
struct HalfExponential {
	float shift;
	__device__ HalfExponential(float shift, float rest) : shift((shift + rest) * 1.4426950408889634f) {}
	__device__ float operator()(float v) const {
		float e;
		asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(v, 1.4426950408889634f, -shift)));
		return e;
	}
};
template <> struct Exponential<bf16> : HalfExponential {
	__device__ Exponential(float shift, float rest = 0) : HalfExponential(shift, rest) {}
};
template <> struct Exponential<f16> : HalfExponential {
	__device__ Exponential(float shift, float rest = 0) : HalfExponential(shift, rest) {}
};
#endif

// probability returns the function e^(v - lse), where lse is log Σ e^x of a row.
template <class T> __device__ inline Exponential<T> probability(double lse) {
	typedef typename Arith<T>::type A;
	const A shift = lse;
	return Exponential<T>(shift, lse - (double)shift);
}

// larger returns the larger number; if one is NaN, the other.
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

// Exponents is Σ e^(x - top) over the numbers that a thread has seen, where top is the largest of them (Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018). It ignores a NaN in top, and has it in sum.
template <class T> struct Exponents {
	typedef typename Arith<T>::type A;
	A top, none;
	double sum;

	__device__ Exponents() : none(__longlong_as_double(0xfff0000000000000ll)), sum(0) { top = none; } // none: -Inf

	// base returns what is subtracted from an exponent: top, if it is a number.
	__device__ A base() const { return top > none ? top : A(0); }

	template <int N> __device__ void add(const A (&v)[N]) {
		A most = v[0];
#pragma unroll
		for (int j = 1; j < N; j++) most = larger(v[j], most);
		if (most > top) {
			sum *= exp_(top - most);
			top = most;
		}
		const Exponential<T> e(base());
		A s = 0;
#pragma unroll
		for (int j = 0; j < N; j++) s += e(v[j]);
		sum += s;
	}

	// log_sum returns log Σ e^x over the numbers of all threads of the block, to every thread.
	__device__ double log_sum() const {
		const A most = block_max(top);
		const double all = block_sum(sum * exp_(top > none ? top - most : A(0)));
		return (most > none ? (double)most : 0.) + log(all);
	}
};

// Splits says whether the label's e^x is summed separately, so that a loss near 0 is accurate. 16-bit logits are too
// inaccurate for that to matter.
template <class T> struct Splits { static const bool value = sizeof(T) > 2; };

// read_others converts a pack of a row. The label's x, at index place in the pack, becomes -Inf if it is summed
// separately. place is N or more if the label is in another pack.
template <class T> __device__ inline void read_others(const Pack<T> &p, u64 label, typename Arith<T>::type (&v)[Pack<T>::N]) {
	const int N = Pack<T>::N;
#pragma unroll
	for (int i = 0; i < N; i++) v[i] = up(p.v[i]);
	if (Splits<T>::value && __builtin_expect(label < N, 0))
#pragma unroll
		for (int i = 0; i < N; i++) v[i] = label == i ? __longlong_as_double(0xfff0000000000000ll) : v[i];
}

// log_sum_exp returns log Σ e^x of a row, without the label's x if that is summed separately, to every thread of the
// block. It reads x once.
template <class T> __device__ inline double log_sum_exp(const T *x, u64 cols, bool wide, u64 label) {
	typedef typename Arith<T>::type A;
	const int N = Pack<T>::N, ahead = 4;
	Exponents<T> e;
	if (!wide) {
#pragma unroll 4
		for (u64 j = threadIdx.x; j < cols; j += blockDim.x) {
			const A v[1] = {Splits<T>::value && j == label ? e.none : up(x[j])};
			e.add(v);
		}
		return e.log_sum();
	}
	const u64 step = blockDim.x * N;
	for (u64 j = threadIdx.x * N; j < cols; j += ahead * step) {
		Pack<T> p[ahead];
#pragma unroll
		for (int a = 0; a < ahead; a++)
			if (j + a * step < cols) p[a].load(x + j + a * step);
#pragma unroll
		for (int a = 0; a < ahead; a++) {
			if (j + a * step >= cols) break;
			A v[N];
			read_others(p[a], label - (j + a * step), v);
			e.add(v);
		}
	}
	return e.log_sum();
}

// RowLoss is a row's -log(softmax(x)[label]), and log Σ e^x.
struct RowLoss { double loss, lse; };

// row_loss returns log(1 + e^(others - own)) as the loss, which is accurate near 0. own is the label's x, and others
// is log Σ e^x of the others, or of all if the label is not summed separately. The loss of a label that is out of
// range is NaN.
template <class T> __device__ inline RowLoss row_loss(double others, const T *x, u64 cols, u64 label) {
	typedef typename Arith<T>::type A;
	const double infinite = __longlong_as_double(0x7ff0000000000000ll);
	double own = label < cols ? (double)up(x[label]) : infinite;
	if (own == infinite) own -= infinite; // NaN
	if (!Splits<T>::value) return {others - own, others};
	const double t = others - own, down = t > 0 ? -t : t;
	const A near = down, e = down < -1000 ? A(0) : exp_(near) * (1 + A(down - (double)near)); // in double it takes long
	const double loss = (t > 0 ? t : 0) + log1p_(e);
	return {loss, own == -infinite ? others : own + loss};
}

// shared_loss is row_loss for all threads of the block. If row_loss is expensive, only one thread computes it.
// shared_loss returns when all threads have read x.
template <class T> __device__ inline RowLoss shared_loss(double others, const T *x, u64 cols, u64 label) {
	if (!Splits<T>::value) {
		const RowLoss l = row_loss(others, x, cols, label);
		__syncthreads();
		return l;
	}
	__shared__ double both[2];
	if (threadIdx.x == 0) {
		const RowLoss l = row_loss(others, x, cols, label);
		both[0] = l.loss;
		both[1] = l.lse;
	}
	__syncthreads();
	return {both[0], both[1]};
}

// cross_entropy computes rows in each block. It writes the losses of all rows and then log Σ e^x of all rows to y, and
// the sum of the block's losses to part.
template <class T> __device__ inline void cross_entropy(const Loss &a) {
	double loss = 0;
	for (u64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
		const T *x = (const T *)a.x + r * a.cols;
		const u64 label = ((const u64 *)a.labels)[r];
		const double others = log_sum_exp(x, a.cols, a.wide, label);
		if (threadIdx.x != 0) continue;
		const RowLoss l = row_loss(others, x, a.cols, label);
		((double *)a.y)[r] = l.loss;
		((double *)a.y)[a.rows + r] = l.lse;
		loss += l.loss;
	}
	if (threadIdx.x == 0) ((double *)a.part)[blockIdx.x] = loss;
}

// cross_entropy_grad reads y as cross_entropy wrote it: the losses of all rows, then log Σ e^x of all rows.
template <class T> __device__ inline void cross_entropy_grad(const Loss &a) {
	typedef typename Arith<T>::type A;
	const A scale = (double)*(const A *)a.g / (double)a.rows;
	const A alpha = a.acc.alpha, beta = a.acc.beta;
	for (u64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
		const T *x = (const T *)a.x + r * a.cols;
		T *dst = (T *)a.dst + r * a.cols;
		const A own = expm1_(A(-((const double *)a.y)[r]));
		const u64 label = ((const u64 *)a.labels)[r];
		const Exponential<T> e = probability<T>(((const double *)a.y)[a.rows + r]);
		auto value = [=](u64 j, A logit, T old) {
			A v = alpha * (scale * (j == label ? own : e(logit)));
			if (beta != 0) v += beta * up(old);
			return down<T>(v);
		};
		if (a.wide) {
			const int N = Pack<T>::N;
			for (u64 j = threadIdx.x * N; j < a.cols; j += blockDim.x * N) {
				Pack<T> px, pd;
				px.load(x + j);
				if (beta != 0) pd.load(dst + j);
#pragma unroll
				for (int i = 0; i < N; i++) pd.v[i] = value(j + i, up(px.v[i]), pd.v[i]);
				pd.store(dst + j);
			}
		} else {
			for (u64 j = threadIdx.x; j < a.cols; j += blockDim.x) dst[j] = value(j, up(x[j]), beta != 0 ? dst[j] : T());
		}
	}
}

// to_gradient replaces logits by the gradient of their row's loss, which is own for the label. label is the label's
// index in the pack; it is N or more if the label is in another pack.
template <class T> __device__ inline void to_gradient(Pack<T> &p, const Exponential<T> &e, u64 label, typename Arith<T>::type own) {
	const int N = Pack<T>::N;
	typename Arith<T>::type v[N];
#pragma unroll
	for (int i = 0; i < N; i++) v[i] = e(up(p.v[i]));
	if (label < N)
#pragma unroll
		for (int i = 0; i < N; i++) v[i] = label == i ? own : v[i];
#pragma unroll
	for (int i = 0; i < N; i++) p.v[i] = down<T>(v[i]);
}

// skips_row reports whether a row has no label. Then it writes the loss 0 and the gradient 0.
const i64 NO_LABEL = (i64)(1ull << 63);

template <class T> __device__ inline bool skips_row(const Loss &a, u64 r) {
	typedef typename Arith<T>::type A;
	if (((const i64 *)a.labels)[r] != NO_LABEL) return false;
	T *x = (T *)a.x + r * a.cols;
	for (u64 j = threadIdx.x; j < a.cols; j += blockDim.x) x[j] = narrow<T>(0);
	if (threadIdx.x == 0) ((A *)a.y)[r] = 0;
	return true;
}

// cross_entropy_in_place writes the loss of each row to y, and overwrites x with the gradient. The second pass over a
// row runs backwards, because the end of the row is still in the cache.
template <class T> __device__ inline void cross_entropy_in_place(const Loss &a) {
	typedef typename Arith<T>::type A;
	const int N = Pack<T>::N;
	for (u64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
		if (skips_row<T>(a, r)) continue;
		T *x = (T *)a.x + r * a.cols;
		const u64 label = ((const u64 *)a.labels)[r];
		const RowLoss l = shared_loss(log_sum_exp(x, a.cols, a.wide, label), x, a.cols, label);
		if (threadIdx.x == 0) ((A *)a.y)[r] = l.loss;
		const A own = expm1_(A(-l.loss));
		const Exponential<T> e = probability<T>(l.lse);
		if (!a.wide) {
			for (u64 j = threadIdx.x; j < a.cols; j += blockDim.x) x[j] = down<T>(j == label ? own : e(up(x[j])));
			continue;
		}
		const u64 step = blockDim.x * N, at = threadIdx.x * N;
		if (at >= a.cols) continue;
#pragma unroll 4
		for (u64 n = divide(a.cols - at - 1, step) + 1; n-- > 0;) {
			const u64 j = at + n * step;
			Pack<T> p;
			p.load(x + j);
			to_gradient(p, e, label - j, own);
			p.store(x + j);
		}
	}
}

// cross_entropy_held is cross_entropy_in_place for rows that fit in a block's registers, so that each is read once:
// HELD packs for each of HELD_THREADS threads. A multiprocessor runs two blocks, so that one loads while the other
// computes.
const int HELD = 25, HELD_THREADS = 256;

template <class T> __device__ inline void cross_entropy_held(const Loss &a) {
	typedef typename Arith<T>::type A;
	const A none = __longlong_as_double(0xfff0000000000000ll); // -Inf
	const int N = Pack<T>::N;
	const u32 cols = a.cols, first = threadIdx.x * N, step = HELD_THREADS * N;
	for (u64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
		if (skips_row<T>(a, r)) continue;
		T *x = (T *)a.x + r * a.cols;
		const u64 label = ((const u64 *)a.labels)[r];
		const u32 place = label < cols ? label : ~0u; // in one register
		Pack<T> p[HELD];
#pragma unroll
		for (int q = 0; q < HELD; q++)
			if (first + q * step < cols) p[q].load(x + first + q * step);
		A top = none;
#pragma unroll
		for (int q = 0; q < HELD; q++)
			if (first + q * step < cols) {
				A v[N];
				read_others(p[q], place - (first + q * step), v);
#pragma unroll
				for (int i = 0; i < N; i++) top = larger(v[i], top);
			}
		top = block_max(top);
		if (!(top > none)) top = 0;
		const Exponential<T> f(top);
		A all = 0;
#pragma unroll
		for (int q = 0; q < HELD; q++) {
			if (first + q * step >= cols) continue;
			A v[N], s = 0;
			read_others(p[q], place - (first + q * step), v);
#pragma unroll
			for (int i = 0; i < N; i++) s += f(v[i]);
			all += s;
		}
		const RowLoss l = shared_loss((double)top + log(block_sum(all)), x, a.cols, label);
		if (threadIdx.x == 0) ((A *)a.y)[r] = l.loss;
		const A own = expm1_(A(-l.loss));
		const Exponential<T> e = probability<T>(l.lse);
#pragma unroll
		for (int q = 0; q < HELD; q++) {
			const u32 j = first + q * step;
			if (j >= cols) continue;
			to_gradient(p[q], e, place - j, own);
			p[q].store(x + j);
		}
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void __launch_bounds__(HELD_THREADS, 2) cross_entropy_held_##name(const Loss a) { cross_entropy_held<T>(a); } \
	extern "C" __global__ void squares_##name(const Loss a) { squares<T>(a); } \
	extern "C" __global__ void mean_##name(const Loss a) { mean<T>(a); } \
	extern "C" __global__ void cross_entropy_##name(const Loss a) { cross_entropy<T>(a); } \
	extern "C" __global__ void cross_entropy_grad_##name(const Loss a) { cross_entropy_grad<T>(a); } \
	extern "C" __global__ void cross_entropy_in_place_##name(const Loss a) { cross_entropy_in_place<T>(a); }
EACH_FLOAT(EXPORT)
