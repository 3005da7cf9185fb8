// Batch norm with a residual and a ReLU. A thread computes eight elements at a time, whose bits are one
// byte of the mask. The kernels whose names end in wide need channels that are the last axis, a multiple
// of eight, and aligned operands; a thread then computes eight neighbouring channels in several rows.

struct BatchNorm {
	u64 dst, residual, x, g, mean, variance, weight, bias, sums, count, mask, part;
	u64 n, c, l;
	u64 chunk, chunks; // for wide kernels: rows per block, and number of blocks
	u64 relu, grads;   // grads: whether sums are those of gradients, not of moments
	double eps;
	Accum acc, acc_residual;
};

const int EACH = 8;

template <class A> __device__ inline A inverse(A variance, double eps) { return (A)(1 / sqrt((double)variance + eps)); }

// Channel holds the numbers of channel c: y = (x - mean)·scale + bias, and the gradient of x is
// scale·(g - sum - (x - mean)·product).
template <class T> struct Channel {
	typedef typename Arith<T>::type A;
	A mean, scale, bias, sum, product;
	__device__ void load(const BatchNorm &a, u64 c) {
		const A inv = inverse(((const A *)a.variance)[c], a.eps);
		mean = ((const A *)a.mean)[c];
		scale = a.weight ? inv * up(((const T *)a.weight)[c]) : inv;
		bias = a.bias ? up(((const T *)a.bias)[c]) : A(0);
		sum = product = 0;
		if (a.sums) {
			const A *sums = (const A *)a.sums, n = *(const A *)a.count;
			sum = sums[c] / n;
			product = sums[a.c + c] / n * inv;
		}
	}
	__device__ A normalised(A x) const { return (x - mean) * scale + bias; }
	__device__ A gradient(A g, A x) const { return scale * (g - sum - (x - mean) * product); }
};

// bits returns the mask's bits of elements 8·i to 8·i+7.
__device__ inline u32 bits(const BatchNorm &a, u64 i) { return a.relu ? ((const u8 *)a.mask)[i] : 0xff; }

// relu returns v, or 0 if v is negative, and sets bit j if the gradient passes.
template <class A> __device__ inline A relu(A v, int j, u32 &mask) {
	if (v <= 0) return 0;
	mask |= 1u << j;
	return v;
}

template <class T> __device__ inline void batch_norm(const BatchNorm &a) {
	typedef typename Arith<T>::type A;
	const u64 n = a.n * a.c * a.l;
	for (u64 e = global_thread(); e * EACH < n; e += global_threads()) {
		u32 mask = 0;
		for (u64 i = e * EACH; i < n && i < (e + 1) * EACH; i++) {
			const u64 plane = divide(i, a.l);
			Channel<T> c;
			c.load(a, plane - divide(plane, a.c) * a.c);
			A v = c.normalised(up(((const T *)a.x)[i]));
			if (a.residual) v += up(((const T *)a.residual)[i]);
			if (a.relu) v = relu(v, i % EACH, mask);
			((T *)a.dst)[i] = down<T>(v);
		}
		if (a.relu && a.mask) ((u8 *)a.mask)[e] = mask;
	}
}

template <class T> __device__ inline void batch_norm_grad(const BatchNorm &a) {
	typedef typename Arith<T>::type A;
	const u64 n = a.n * a.c * a.l;
	for (u64 e = global_thread(); e * EACH < n; e += global_threads()) {
		const u32 mask = bits(a, e);
		for (u64 i = e * EACH; i < n && i < (e + 1) * EACH; i++) {
			const A g = mask >> i % EACH & 1 ? up(((const T *)a.g)[i]) : A(0);
			if (a.residual) accumulate((T *)a.residual + i, a.acc_residual, (double)g);
			if (!a.dst) continue;
			const u64 plane = divide(i, a.l);
			Channel<T> c;
			c.load(a, plane - divide(plane, a.c) * a.c);
			accumulate((T *)a.dst + i, a.acc, (double)c.gradient(g, up(((const T *)a.x)[i])));
		}
	}
}

// Rows are the rows of a thread of a wide kernel, and its first channel.
struct Rows {
	u64 channel, first, step, end;
	__device__ Rows(const BatchNorm &a) {
		channel = (blockIdx.x * (u64)blockDim.x + threadIdx.x) * EACH;
		step = blockDim.y;
		end = channel < a.c ? min((blockIdx.y + 1) * a.chunk, a.n) : 0;
		first = blockIdx.y * a.chunk + threadIdx.y;
	}
};

const int AHEAD = 4; // rows whose loads are in flight together

template <class T> __device__ inline void batch_norm_wide(const BatchNorm &a) {
	typedef typename Arith<T>::type A;
	const Rows rows(a);
	if (rows.first >= rows.end) return;
	Channel<T> c[EACH];
#pragma unroll
	for (int j = 0; j < EACH; j++) c[j].load(a, rows.channel + j);
	for (u64 first = rows.first; first < rows.end; first += AHEAD * rows.step) {
		Packs<T, EACH> x[AHEAD], r[AHEAD];
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			const u64 row = first + k * rows.step, at = row * a.c + rows.channel;
			if (row >= rows.end) continue;
			x[k].load((const T *)a.x + at);
			if (a.residual) r[k].load((const T *)a.residual + at);
		}
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			const u64 row = first + k * rows.step, at = row * a.c + rows.channel;
			if (row >= rows.end) continue;
			u32 mask = 0;
#pragma unroll
			for (int j = 0; j < EACH; j++) {
				A v = c[j].normalised(up(x[k][j]));
				if (a.residual) v += up(r[k][j]);
				if (a.relu) v = relu(v, j, mask);
				x[k][j] = down<T>(v);
			}
			x[k].store((T *)a.dst + at);
			if (a.relu && a.mask) ((u8 *)a.mask)[at / EACH] = mask;
		}
	}
}

// deposit accumulates eight elements.
template <class T> __device__ inline void deposit(T *to, const Accum &acc, Packs<T, EACH> &v) {
	if (acc.alpha != 1 || acc.beta != 0) {
		Packs<T, EACH> old;
		if (acc.beta != 0) old.load(to);
#pragma unroll
		for (int j = 0; j < EACH; j++) {
			typename Arith<T>::type w = (typename Arith<T>::type)acc.alpha * up(v[j]);
			if (acc.beta != 0) w += (typename Arith<T>::type)acc.beta * up(old[j]);
			v[j] = down<T>(w);
		}
	}
	v.store(to);
}

template <class T> __device__ inline void batch_norm_grad_wide(const BatchNorm &a) {
	typedef typename Arith<T>::type A;
	const Rows rows(a);
	if (rows.first >= rows.end) return;
	Channel<T> c[EACH];
#pragma unroll
	for (int j = 0; j < EACH; j++) c[j].load(a, rows.channel + j);
	for (u64 first = rows.first; first < rows.end; first += AHEAD * rows.step) {
		Packs<T, EACH> x[AHEAD], g[AHEAD];
		u32 mask[AHEAD];
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			const u64 row = first + k * rows.step, at = row * a.c + rows.channel;
			if (row >= rows.end) continue;
			g[k].load((const T *)a.g + at);
			if (a.dst) x[k].load((const T *)a.x + at);
			mask[k] = bits(a, at / EACH);
		}
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			const u64 row = first + k * rows.step, at = row * a.c + rows.channel;
			if (row >= rows.end) continue;
#pragma unroll
			for (int j = 0; j < EACH; j++) {
				if (!(mask[k] >> j & 1)) g[k][j] = T();
				if (a.dst) x[k][j] = down<T>(c[j].gradient(up(g[k][j]), up(x[k][j])));
			}
			if (a.dst) deposit((T *)a.dst + at, a.acc, x[k]);
			if (a.residual) deposit((T *)a.residual + at, a.acc_residual, g[k]);
		}
	}
}

// origin returns the mean of four elements of channel c. Sums of squares relative to it lose little
// accuracy.
template <class T> __device__ inline typename Arith<T>::type origin(const BatchNorm &a, u64 c) {
	typename Arith<T>::type s = 0;
	for (int i = 0; i < 4; i++) s += up(((const T *)a.x)[a.n * i / 4 * a.c + c]);
	return s / 4;
}

// batch_sums_wide adds a chunk of rows of each channel: of x - origin and its square, or of g and
// g·(x - mean).
template <class T, bool grads> __device__ inline void batch_sums_wide(const BatchNorm &a) {
	typedef typename Arith<T>::type A;
	const int ahead = grads ? AHEAD : 2 * AHEAD;
	__shared__ A shared[2 * EACH][256];
	const Rows rows(a);
	A from[EACH], s[EACH], q[EACH];
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		s[j] = q[j] = from[j] = 0;
		if (rows.channel < a.c) from[j] = grads ? ((const A *)a.mean)[rows.channel + j] : origin<T>(a, rows.channel + j);
	}
	for (u64 first = rows.first; first < rows.end; first += ahead * rows.step) {
		Packs<T, EACH> x[ahead], g[ahead];
		u32 mask[ahead];
#pragma unroll
		for (int k = 0; k < ahead; k++) {
			const u64 row = first + k * rows.step, at = row * a.c + rows.channel;
			if (row >= rows.end) continue;
			x[k].load((const T *)a.x + at);
			if (!grads) continue;
			g[k].load((const T *)a.g + at);
			mask[k] = bits(a, at / EACH);
		}
#pragma unroll
		for (int k = 0; k < ahead; k++) {
			if (first + k * rows.step >= rows.end) continue;
#pragma unroll
			for (int j = 0; j < EACH; j++) {
				const A d = up(x[k][j]) - from[j], h = !grads ? d : mask[k] >> j & 1 ? up(g[k][j]) : A(0);
				s[j] += h;
				q[j] += h * d;
			}
		}
	}
	const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		shared[j][thread] = s[j];
		shared[EACH + j][thread] = q[j];
	}
	__syncthreads();
	for (int i = thread; i < 2 * EACH * (int)blockDim.x; i += blockDim.x * blockDim.y) {
		const int column = i / (2 * EACH), which = i % (2 * EACH);
		const u64 channel = (blockIdx.x * (u64)blockDim.x + column) * EACH + which % EACH;
		if (channel >= a.c) continue;
		A sum = 0;
		for (int y = 0; y < blockDim.y; y++) sum += shared[which][y * blockDim.x + column];
		((A *)a.part)[(blockIdx.y * 2 + which / EACH) * a.c + channel] = sum;
	}
}

// batch_fold adds the chunks' sums and completes them. A block of 32 × 32 threads computes 32 channels.
template <class T> __device__ inline void batch_fold(const BatchNorm &a) {
	typedef typename Arith<T>::type A;
	__shared__ double part[2][32][32];
	const u64 c = blockIdx.x * 32ull + threadIdx.x;
	double s = 0, q = 0;
	if (c < a.c)
#pragma unroll 8
		for (u64 k = threadIdx.y; k < a.chunks; k += 32) {
			s += ((const A *)a.part)[k * 2 * a.c + c];
			q += ((const A *)a.part)[(k * 2 + 1) * a.c + c];
		}
	part[0][threadIdx.y][threadIdx.x] = s;
	part[1][threadIdx.y][threadIdx.x] = q;
	__syncthreads();
	if (threadIdx.y > 0 || c >= a.c) return;
	for (int y = 1; y < 32; y++) {
		s += part[0][y][threadIdx.x];
		q += part[1][y][threadIdx.x];
	}
	if (a.grads) {
		((A *)a.dst)[c] = (A)s;
		((A *)a.dst)[a.c + c] = (A)(q * (double)inverse(((const A *)a.variance)[c], a.eps));
		return;
	}
	const double n = (double)a.n, d = s / n, v = q / n - d * d;
	((A *)a.mean)[c] = (A)((double)origin<T>(a, c) + d);
	((A *)a.variance)[c] = (A)(v < 0 ? 0 : v);
}

#define EXPORT(name, T) \
	extern "C" __global__ void batch_norm_##name(const BatchNorm a) { batch_norm<T>(a); } \
	extern "C" __global__ void batch_norm_grad_##name(const BatchNorm a) { batch_norm_grad<T>(a); } \
	extern "C" __global__ void __launch_bounds__(256) batch_norm_wide_##name(const BatchNorm a) { batch_norm_wide<T>(a); } \
	extern "C" __global__ void __launch_bounds__(256) batch_norm_grad_wide_##name(const BatchNorm a) { batch_norm_grad_wide<T>(a); } \
	extern "C" __global__ void __launch_bounds__(256) batch_moments_wide_##name(const BatchNorm a) { batch_sums_wide<T, false>(a); } \
	extern "C" __global__ void __launch_bounds__(256) batch_sums_wide_##name(const BatchNorm a) { batch_sums_wide<T, true>(a); } \
	extern "C" __global__ void batch_fold_##name(const BatchNorm a) { batch_fold<T>(a); }
EACH_FLOAT(EXPORT)
