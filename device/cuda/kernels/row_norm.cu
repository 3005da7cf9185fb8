// Normalisation over rows that lie in memory in a row: LayerNorm and RMSNorm. A row is read once
// and kept in registers. A thread holds at most HELD elements of it, in packs of 16 bytes. Rows of
// up to 32·HELD elements belong to one warp each, and longer rows to a block. Arithmetic is in
// float. Sums are added in an order that depends on the shapes alone.

#define HELD 32
#define ROW_WARPS 8 // the most warps of a block

struct RowNorm {
	u64 dst, sum, x, y, g, addend; // sum = x + y, unless y is 0
	u64 mean, variance, weight, bias;
	u64 part, parts; // part [parts 2 cols]: each block's sums of g, and of g times the normalised x
	u64 rows, cols;
	u64 centered;
	double eps;
	Accum acc;
	u64 dweight, dbias;
	Accum acc_weight, acc_bias;
};

// row_total replaces each of v by its sum over the threads of a row. A block has one row, unless a row
// has one warp.
template <int K> __device__ inline void row_total(float (&v)[K]) {
	__shared__ float part[K][ROW_WARPS];
#pragma unroll
	for (int lane = 16; lane > 0; lane /= 2)
#pragma unroll
		for (int k = 0; k < K; k++) v[k] += __shfl_xor_sync(0xffffffffu, v[k], lane);
	if (blockDim.x == 32) return;
	__syncthreads(); // other threads may still read part from the last call
	if (threadIdx.x % 32 == 0)
		for (int k = 0; k < K; k++) part[k][threadIdx.x / 32] = v[k];
	__syncthreads();
	for (int k = 0; k < K; k++) {
		v[k] = 0;
		for (u32 i = 0; i < blockDim.x / 32; i++) v[k] += part[k][i];
	}
}

// Held is a thread's part of a row: packs threadIdx.x, threadIdx.x + blockDim.x and so on.
template <class T> struct Held {
	static const int N = Pack<T>::N, PACKS = HELD / N;
	Pack<T> p[PACKS];

	// load reads the row at from, which has the given number of packs. Elements beyond it become 0.
	__device__ void load(u64 from, u64 row, u32 packs) {
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			const u32 at = threadIdx.x + i * blockDim.x;
			p[i].raw = at < packs && from ? ((const uint4 *)from)[row * packs + at] : make_uint4(0, 0, 0, 0);
		}
	}
	__device__ float operator()(int i, int j) const { return up(p[i].v[j]); }
};

// each_held calls f(i, j) for the elements of a thread, and done(i, at) after each pack, where at is
// the pack's number in the row.
template <class T, class F, class G> __device__ inline void each_held(u32 packs, F f, G done) {
#pragma unroll
	for (int i = 0; i < Held<T>::PACKS; i++) {
		const u32 at = threadIdx.x + i * blockDim.x;
		if (at < packs) {
#pragma unroll
			for (int j = 0; j < Held<T>::N; j++) f(i, j);
			done(i, at);
		}
	}
}
template <class T, class F> __device__ inline void each_held(u32 packs, F f) {
	each_held<T>(packs, f, [](int, u32) {});
}

__device__ inline float row_scale(float variance, double eps) { return 1.0f / sqrtf(variance + (float)eps); }

// row_norm normalises rows. The next row is on its way while one is computed.
template <class T> __device__ inline void row_norm(const RowNorm &a) {
	const u32 packs = a.cols / Pack<T>::N;
	const u64 step = gridDim.x * (u64)blockDim.y;
	const float cols = a.cols;
	u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y;
	if (row >= a.rows) return;
	Held<T> w, b, next, addend;
	w.load(a.weight, 0, packs);
	b.load(a.bias, 0, packs);
	next.load(a.x, row, packs);
	addend.load(a.y, row, packs);
	for (; row < a.rows; row += step) {
		Held<T> x = next;
		if (a.y) {
			each_held<T>(packs, [&](int i, int j) { x.p[i].v[j] = down<T>(x(i, j) + addend(i, j)); },
				[&](int i, u32 at) { ((uint4 *)a.sum)[row * packs + at] = x.p[i].raw; });
		}
		if (row + step < a.rows) {
			next.load(a.x, row + step, packs);
			if (a.y) addend.load(a.y, row + step, packs);
		}
		float total[1] = {}, squares[1] = {};
		if (a.centered) {
			each_held<T>(packs, [&](int i, int j) { total[0] += x(i, j); });
			row_total(total);
		}
		const float m = total[0] / cols;
		each_held<T>(packs, [&](int i, int j) { squares[0] += (x(i, j) - m) * (x(i, j) - m); });
		row_total(squares);
		const float v = squares[0] / cols, scale = row_scale(v, a.eps);
		if (threadIdx.x == 0) {
			if (a.centered) ((float *)a.mean)[row] = m;
			((float *)a.variance)[row] = v;
		}
		each_held<T>(packs, [&](int i, int j) {
			float r = (x(i, j) - m) * scale;
			if (a.weight) r *= w(i, j);
			if (a.bias) r += b(i, j);
			x.p[i].v[j] = down<T>(r);
		}, [&](int i, u32 at) { ((uint4 *)a.dst)[row * packs + at] = x.p[i].raw; });
	}
}

// row_norm_grad computes the gradient of x and, in the same pass, each block's sums for the gradients
// of bias and weight.
template <class T> __device__ inline void row_norm_grad(const RowNorm &a) {
	const int N = Pack<T>::N, PACKS = Held<T>::PACKS;
	__shared__ float fold[2][HELD][32];
	const u32 packs = a.cols / N;
	const u64 step = gridDim.x * (u64)blockDim.y;
	const float cols = a.cols, alpha = a.acc.alpha, beta = a.acc.beta;
	float sums[PACKS][N] = {}, products[PACKS][N] = {};
	Held<T> w;
	w.load(a.weight, 0, packs);
	for (u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y; row < a.rows; row += step) {
		Held<T> x, g, addend, old;
		x.load(a.x, row, packs);
		g.load(a.g, row, packs);
		addend.load(a.addend, row, packs);
		if (beta != 0) old.load(a.dst, row, packs);
		const float m = a.centered ? ((const float *)a.mean)[row] : 0.0f, scale = row_scale(((const float *)a.variance)[row], a.eps);
		float total[2] = {}; // of h, and of h times the normalised x
		each_held<T>(packs, [&](int i, int j) {
			const float y = (x(i, j) - m) * scale, d = g(i, j), h = a.weight ? d * w(i, j) : d;
			sums[i][j] += d;
			products[i][j] += d * y;
			total[0] += h;
			total[1] += h * y;
		});
		if (!a.dst) continue;
		row_total(total);
		const float s = a.centered ? total[0] / cols : 0.0f, q = total[1] / cols;
		each_held<T>(packs, [&](int i, int j) {
			const float y = (x(i, j) - m) * scale, d = g(i, j), h = a.weight ? d * w(i, j) : d;
			float v = alpha * (scale * (h - s - y * q) + addend(i, j));
			if (beta != 0) v += beta * old(i, j);
			x.p[i].v[j] = down<T>(v);
		}, [&](int i, u32 at) { ((uint4 *)a.dst)[row * packs + at] = x.p[i].raw; });
	}
	if (!a.part) return;
	for (u32 y = 0; y < blockDim.y; y++) { // the block's rows are added warp by warp
		if (threadIdx.y == y)
#pragma unroll
			for (int i = 0; i < PACKS; i++)
#pragma unroll
				for (int j = 0; j < N; j++) {
					float *s = &fold[0][i * N + j][threadIdx.x % 32], *q = &fold[1][i * N + j][threadIdx.x % 32];
					if (y > 0) {
						sums[i][j] += *s;
						products[i][j] += *q;
					}
					if (y + 1 < blockDim.y) {
						*s = sums[i][j];
						*q = products[i][j];
					}
				}
		__syncthreads();
	}
	if (threadIdx.y + 1 < blockDim.y) return;
	float *part = (float *)a.part + blockIdx.x * 2 * a.cols;
	each_held<T>(packs, [&](int i, int j) {
		const u64 c = (threadIdx.x + i * blockDim.x) * (u64)N + j;
		part[c] = sums[i][j];
		part[a.cols + c] = products[i][j];
	});
}

// row_norm_fold adds the blocks' sums. A block of 32 × 32 threads computes 32 columns, each thread
// adds every 32nd part.
template <class T> __device__ inline void row_norm_fold(const RowNorm &a) {
	__shared__ float part[32][33];
	const u64 c = blockIdx.x * 32ull + threadIdx.x;
	float v = 0;
	if (c < 2 * a.cols) {
#pragma unroll 8
		for (u64 k = threadIdx.y; k < a.parts; k += 32) v += ((const float *)a.part)[k * 2 * a.cols + c];
	}
	part[threadIdx.y][threadIdx.x] = v;
	__syncthreads();
	if (threadIdx.y > 0 || c >= 2 * a.cols) return;
	double sum = 0;
	for (int y = 0; y < 32; y++) sum += part[y][threadIdx.x];
	if (c < a.cols) {
		if (a.dbias) accumulate((T *)a.dbias + c, a.acc_bias, sum);
	} else if (a.dweight) {
		accumulate((T *)a.dweight + (c - a.cols), a.acc_weight, sum);
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS) row_norm_##name(const RowNorm a) { row_norm<T>(a); } \
	extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS) row_norm_grad_##name(const RowNorm a) { row_norm_grad<T>(a); } \
	extern "C" __global__ void row_norm_fold_##name(const RowNorm a) { row_norm_fold<T>(a); }
EXPORT(float32, float)
EXPORT(float16, f16)
EXPORT(bfloat16, bf16)
