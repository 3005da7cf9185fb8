// Normalization by group and by channel, for any shape; row_norm.cu is faster for contiguous rows. x is
// [n c l]. Sums are in float64, in an order that depends only on the shapes.

struct Norm {
	u64 dst, x, g, addend, mean, variance, weight, bias, sums, count, part, mask;
	u64 n, c, l;
	u64 groups;        // groups of channels per sample; 0: each channel, over all samples
	u64 centered;
	u64 chunk, chunks; // for sums: elements of a channel per chunk, and number of chunks
	u64 mode;          // of sums
	double eps, factor;
	Accum acc;
	u64 dweight, dbias; // of SUM_PARAMETERS
	Accum acc_weight, acc_bias;
};

// Means and variances have the type in which elements of type T are computed.

template <class A> __device__ inline A inverse(A variance, double eps) {
	return (A)(1 / sqrt((double)variance + eps));
}

// factor returns weight c, or 1 without a weight. summand returns bias c, or 0 without a bias.
template <class T> __device__ inline typename Arith<T>::type factor(const Norm &a, u64 c) {
	return a.weight ? up(((const T *)a.weight)[c]) : typename Arith<T>::type(1);
}
template <class T> __device__ inline typename Arith<T>::type summand(const Norm &a, u64 c) {
	return a.bias ? up(((const T *)a.bias)[c]) : typename Arith<T>::type(0);
}

// group_norm computes rows in each block. A row is a group of channels of one sample.
template <class T> __device__ inline void group_norm(const Norm &a) {
	typedef typename Arith<T>::type A;
	const u64 rows = a.n * a.groups, per = a.c / a.groups, cols = per * a.l;
	for (u64 r = blockIdx.x; r < rows; r += gridDim.x) {
		const T *x = (const T *)a.x + r * cols;
		T *dst = (T *)a.dst + r * cols;
		A m = 0;
		if (a.centered) {
			double s = 0;
			for (u64 i = threadIdx.x; i < cols; i += blockDim.x) s += up(x[i]);
			m = (A)(block_sum(s) / (double)cols);
		}
		double q = 0;
		for (u64 i = threadIdx.x; i < cols; i += blockDim.x) {
			const double d = (double)up(x[i]) - (double)m;
			q += d * d;
		}
		const A v = (A)(block_sum(q) / (double)cols), scale = inverse(v, a.eps);
		if (threadIdx.x == 0) {
			if (a.centered) ((A *)a.mean)[r] = m;
			((A *)a.variance)[r] = v;
		}
		const u64 first = r % a.groups * per;
		for (u64 i = threadIdx.x; i < cols; i += blockDim.x) {
			const u64 c = first + divide(i, a.l);
			dst[i] = down<T>((up(x[i]) - m) * scale * factor<T>(a, c) + summand<T>(a, c));
		}
	}
}

template <class T> __device__ inline void group_norm_grad(const Norm &a) {
	typedef typename Arith<T>::type A;
	const u64 rows = a.n * a.groups, per = a.c / a.groups, cols = per * a.l;
	for (u64 r = blockIdx.x; r < rows; r += gridDim.x) {
		const T *x = (const T *)a.x + r * cols, *g = (const T *)a.g + r * cols;
		T *dst = (T *)a.dst + r * cols;
		const A m = a.centered ? ((const A *)a.mean)[r] : A(0), scale = inverse(((const A *)a.variance)[r], a.eps);
		const u64 first = r % a.groups * per;
		double s = 0, q = 0;
		for (u64 i = threadIdx.x; i < cols; i += blockDim.x) {
			const double h = up(g[i]) * factor<T>(a, first + divide(i, a.l));
			s += h;
			q += h * (double)((up(x[i]) - m) * scale);
		}
		s = block_sum(s);
		q = block_sum(q);
		const A mean = a.centered ? (A)(s / (double)cols) : A(0), product = (A)(q / (double)cols);
		for (u64 i = threadIdx.x; i < cols; i += blockDim.x) {
			const A h = up(g[i]) * factor<T>(a, first + divide(i, a.l));
			A v = scale * (h - mean - (up(x[i]) - m) * scale * product);
			if (a.addend) v += up(((const T *)a.addend)[r * cols + i]);
			accumulate(dst + i, a.acc, (double)v);
		}
	}
}

// These are the modes of sums: the sum of x; of (x - mean)²; of g, and of g times the normalized x. The
// latter two are stored in dst [2 c], or in the gradients of bias and weight.
enum { SUM_X, SUM_SQUARES, SUM_GRADS, SUM_PARAMETERS };

// add adds element (n, c) at index i of x to the sums of channel c.
template <class T> __device__ inline void add(const Norm &a, u64 n, u64 c, u64 i, double &s, double &q) {
	typedef typename Arith<T>::type A;
	const A x = up(((const T *)a.x)[i]);
	if (a.mode == SUM_X) {
		s += x;
	} else if (a.mode == SUM_SQUARES) {
		const double d = (double)x - (double)((const A *)a.mean)[c];
		s += d * d;
	} else {
		const u64 group = a.groups ? n * a.groups + divide(c, a.c / a.groups) : c;
		const A m = a.mean ? ((const A *)a.mean)[group] : A(0), scale = inverse(((const A *)a.variance)[group], a.eps);
		const bool passes = !a.mask || ((const u8 *)a.mask)[i / 8] >> i % 8 & 1; // as in batchnorm.cu
		const A g = passes ? up(((const T *)a.g)[i]) : A(0);
		s += g;
		q += (double)g * (double)((x - m) * scale);
	}
}

// norm_planes adds one chunk of a channel's elements in each block. Channels are along the grid's
// x, chunks along y.
template <class T> __device__ inline void norm_planes(const Norm &a) {
	const u64 c = blockIdx.x, from = blockIdx.y * a.chunk, to = min(from + a.chunk, a.n * a.l);
	double s = 0, q = 0;
	for (u64 e = from + threadIdx.x; e < to; e += blockDim.x) {
		const u64 n = divide(e, a.l);
		add<T>(a, n, c, (n * a.c + c) * a.l + (e - n * a.l), s, q);
	}
	s = block_sum(s);
	q = block_sum(q);
	if (threadIdx.x == 0) {
		double *part = (double *)a.part + blockIdx.y * 2 * a.c;
		part[c] = s;
		part[a.c + c] = q;
	}
}

// norm_columns does the same if a channel has one position. A block of 32 × 8 threads computes 32
// channels, and each thread adds every eighth sample of the chunk.
template <class T> __device__ inline void norm_columns(const Norm &a) {
	__shared__ double part[2][8][32];
	const u64 c = blockIdx.x * 32ull + threadIdx.x, from = blockIdx.y * a.chunk, to = min(from + a.chunk, a.n);
	double s = 0, q = 0;
	if (c < a.c)
		for (u64 n = from + threadIdx.y; n < to; n += 8) add<T>(a, n, c, n * a.c + c, s, q);
	part[0][threadIdx.y][threadIdx.x] = s;
	part[1][threadIdx.y][threadIdx.x] = q;
	__syncthreads();
	if (threadIdx.y < 2 && c < a.c) {
		double v = 0;
		for (int y = 0; y < 8; y++) v += part[threadIdx.y][y][threadIdx.x];
		((double *)a.part)[(blockIdx.y * 2 + threadIdx.y) * a.c + c] = v;
	}
}

// norm_fold adds the chunks' sums. It writes the first sums, times a factor, to dst, or both sums to
// the destinations of the mode.
template <class T> __device__ inline void norm_fold(const Norm &a) {
	typedef typename Arith<T>::type A;
	const u64 n = a.mode >= SUM_GRADS ? 2 * a.c : a.c;
	for (u64 i = global_thread(); i < n; i += global_threads()) {
		double v = 0;
		for (u64 k = 0; k < a.chunks; k++) v += ((const double *)a.part)[k * 2 * a.c + i];
		if (a.mode != SUM_PARAMETERS) {
			((A *)a.dst)[i] = (A)(v * a.factor);
		} else if (i < a.c) {
			if (a.dbias) accumulate((T *)a.dbias + i, a.acc_bias, v);
		} else if (a.dweight) {
			accumulate((T *)a.dweight + (i - a.c), a.acc_weight, v);
		}
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void group_norm_##name(const Norm a) { group_norm<T>(a); } \
	extern "C" __global__ void group_norm_grad_##name(const Norm a) { group_norm_grad<T>(a); } \
	extern "C" __global__ void norm_planes_##name(const Norm a) { norm_planes<T>(a); } \
	extern "C" __global__ void norm_columns_##name(const Norm a) { norm_columns<T>(a); } \
	extern "C" __global__ void norm_fold_##name(const Norm a) { norm_fold<T>(a); }
EACH_FLOAT(EXPORT)

struct Merge {
	u64 mean, variance, count, parts, batches;
	u64 ranks, c;
	double momentum;
};

// merge_moments computes channels in each thread. It ignores a rank without elements, whatever that
// rank's mean is.
template <class A> __device__ inline void merge_moments(const Merge &a) {
	const u64 row = 2 * a.c + 1;
	const A *parts = (const A *)a.parts;
	double total = 0;
	for (u64 r = 0; r < a.ranks; r++) total += parts[r * row + 2 * a.c];
	if (global_thread() == 0) *(A *)a.count = (A)total;
	for (u64 c = global_thread(); c < a.c; c += global_threads()) {
		double m = 0, v = 0;
		for (u64 r = 0; r < a.ranks; r++) {
			const double n = parts[r * row + 2 * a.c];
			if (n > 0) m += n / total * (double)parts[r * row + c];
		}
		for (u64 r = 0; r < a.ranks; r++) {
			const double n = parts[r * row + 2 * a.c], d = (double)parts[r * row + c] - m;
			if (n > 0) v += n / total * ((double)parts[r * row + a.c + c] + d * d);
		}
		((A *)a.mean)[c] = (A)m;
		((A *)a.variance)[c] = (A)v;
	}
}

// track_moments moves the running mean and variance, which a holds, towards mean and variance.
template <class A> __device__ inline void track_moments(const Merge &a, const A *mean, const A *variance) {
	const double n = *(const A *)a.count;
	if (global_thread() == 0) *(i64 *)a.batches += 1;
	if (n == 0) return;
	const double unbiased = n / (n > 1 ? n - 1 : 1);
	for (u64 c = global_thread(); c < a.c; c += global_threads()) {
		A *m = (A *)a.mean + c, *v = (A *)a.variance + c;
		*m = (A)((1 - a.momentum) * (double)*m + a.momentum * (double)mean[c]);
		*v = (A)((1 - a.momentum) * (double)*v + a.momentum * (double)variance[c] * unbiased);
	}
}

struct Track {
	Merge to;
	u64 mean, variance;
};

#define EXPORT_WIDE(name, A) \
	extern "C" __global__ void merge_moments_##name(const Merge a) { merge_moments<A>(a); } \
	extern "C" __global__ void track_moments_##name(const Track a) { \
		track_moments<A>(a.to, (const A *)a.mean, (const A *)a.variance); \
	}
FLOAT32(EXPORT_WIDE)
FLOAT64(EXPORT_WIDE)
