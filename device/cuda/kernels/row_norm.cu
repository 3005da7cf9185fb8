// Normalization over contiguous rows: LayerNorm and RMSNorm. A row is read once and kept in registers.
// A thread holds at most HELD elements of it, in packs of 16 bytes. One warp computes a row of up to
// 1024 elements, a block a longer row. Arithmetic is in float. The order of sums depends only on
// the shapes.

#define ROW_WARPS 8 // maximum number of warps per block

struct RowNorm {
	u64 dst, sum, x, y, g, addend; // sum = x + y, unless y is 0
	u64 mean, variance, weight, bias;
	u64 part, parts; // part [parts 2 cols]: each block's sums of g, and of g times the normalized x
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

// pack_of rounds the numbers of a pack.
template <class T> __device__ inline uint4 pack_of(const float (&v)[8]) { return make_uint4(pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]), pack2<T>(v[6], v[7])); }
template <class T> __device__ inline uint4 pack_of(const float (&v)[4]) {
	return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
}

// Held is a thread's part of a row: packs threadIdx.x, threadIdx.x + blockDim.x and so on.
template <class T, int HELD> struct Held {
	static const int N = Pack<T>::N, PACKS = HELD / N;
	Pack<T> p[PACKS];

	// load reads a row of the array at from, whose rows have the given number of packs. Every element
	// becomes otherwise if there is no array.
	__device__ void load(u64 from, u64 row, u32 packs, float otherwise = 0) {
		if (!from) {
#pragma unroll
			for (int i = 0; i < PACKS; i++)
#pragma unroll
				for (int j = 0; j < N; j++) p[i].v[j] = down<T>(otherwise);
			return;
		}
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			const u32 at = threadIdx.x + i * blockDim.x;
			if (at < packs) p[i].raw = ((const uint4 *)from)[row * packs + at];
		}
	}
	__device__ float operator()(int i, int j) const { return up(p[i].v[j]); }

	// each calls f(i, j) for the elements j of the packs i that a row has, and done(i, at) after each
	// pack, where at is the pack's number in the row.
	template <class F, class G> static __device__ void each(u32 packs, F f, G done) {
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			const u32 at = threadIdx.x + i * blockDim.x;
			if (at < packs) {
#pragma unroll
				for (int j = 0; j < N; j++) f(i, j);
				done(i, at);
			}
		}
	}
	template <class F> static __device__ void each(u32 packs, F f) {
		each(packs, f, [](int, u32) {});
	}
};

__device__ inline float row_scale(float variance, double eps) { return 1.0f / sqrtf(variance + (float)eps); }

// row_norm normalizes rows. The next row is loaded while one is computed.
template <class T, int HELD> __device__ inline void row_norm(const RowNorm &a) {
	typedef Held<T, HELD> Row;
	const int N = Row::N, PACKS = Row::PACKS;
	const u32 packs = a.cols / N;
	const u64 step = gridDim.x * (u64)blockDim.y;
	const float cols = a.cols;
	u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y;
	if (row >= a.rows) return;
	Row w, b, next, addend;
	w.load(a.weight, 0, packs, 1);
	b.load(a.bias, 0, packs);
	next.load(a.x, row, packs);
	if (a.y) addend.load(a.y, row, packs);
	for (; row < a.rows; row += step) {
		float x[PACKS][N], total[1] = {}, squares[1] = {};
		if (a.y) {
			Row::each(packs, [&](int i, int j) { x[i][j] = next(i, j) + addend(i, j); }, [&](int i, u32 at) {
				next.p[i].raw = pack_of<T>(x[i]);
				((uint4 *)a.sum)[row * packs + at] = next.p[i].raw;
			});
		}
		Row::each(packs, [&](int i, int j) { x[i][j] = next(i, j); });
		if (row + step < a.rows) {
			next.load(a.x, row + step, packs);
			if (a.y) addend.load(a.y, row + step, packs);
		}
		float m = 0;
		if (a.centered) {
			Row::each(packs, [&](int i, int j) { total[0] += x[i][j]; });
			row_total(total);
			m = total[0] / cols;
		}
		Row::each(packs, [&](int i, int j) {
			x[i][j] -= m;
			squares[0] += x[i][j] * x[i][j];
		});
		row_total(squares);
		start_next();
		const float v = squares[0] / cols, scale = row_scale(v, a.eps);
		if (threadIdx.x == 0) {
			if (a.centered) ((float *)a.mean)[row] = m;
			((float *)a.variance)[row] = v;
		}
		Row::each(packs, [&](int i, int j) { x[i][j] = x[i][j] * scale * w(i, j) + b(i, j); },
			[&](int i, u32 at) { ((uint4 *)a.dst)[row * packs + at] = pack_of<T>(x[i]); });
	}
}

// row_norm_grad computes the gradient of x and, in the same pass, each block's sums for the gradients
// of bias and weight. With MORE it adds the addend and the existing gradient of x. If registers suffice, the next row is
// loaded while one is computed.
template <class T, int HELD, bool MORE> __device__ inline void row_norm_grad(const RowNorm &a, float (*fold)[HELD][32]) {
	typedef Held<T, HELD> Row;
	const int N = Row::N, PACKS = Row::PACKS;
	const u32 packs = a.cols / N;
	const u64 step = gridDim.x * (u64)blockDim.y;
	const float cols = a.cols, alpha = a.acc.alpha, beta = a.acc.beta;
	const bool ahead = HELD <= 16;
	float sums[PACKS][N] = {}, products[PACKS][N] = {};
	Row w, x, g, addend, next_x, next_g, next_addend;
	auto load = [&](u64 row) {
		next_x.load(a.x, row, packs);
		next_g.load(a.g, row, packs);
		if (MORE) next_addend.load(a.addend, row, packs);
	};
	w.load(a.weight, 0, packs, 1);
	u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y;
	if (ahead && row < a.rows) load(row);
	for (; row < a.rows; row += step) {
		if (!ahead) load(row);
		x = next_x, g = next_g, addend = next_addend;
		if (ahead && row + step < a.rows) load(row + step);
		const float scale = row_scale(((const float *)a.variance)[row], a.eps), shift = a.centered ? -((const float *)a.mean)[row] * scale : 0.0f;
		float total[2] = {}; // of h = g·weight, and of h times the normalized x
		Row::each(packs, [&](int i, int j) {
			const float y = x(i, j) * scale + shift, d = g(i, j), h = d * w(i, j);
			sums[i][j] += d;
			products[i][j] += d * y;
			total[0] += h;
			total[1] += h * y;
		});
		if (!a.dst) continue;
		row_total(total);
		float out[N];
		const float s = a.centered ? total[0] / cols : 0.0f, q = total[1] / cols, by = alpha * scale;
		Row::each(packs, [&](int i, int j) {
			const float y = x(i, j) * scale + shift, h = g(i, j) * w(i, j);
			out[j] = by * (h - s - y * q);
			if (MORE) out[j] += alpha * addend(i, j);
		}, [&](int i, u32 at) {
			uint4 *to = (uint4 *)a.dst + row * packs + at;
			if (MORE && beta != 0) {
				Pack<T> present;
				present.raw = *to;
#pragma unroll
				for (int j = 0; j < N; j++) out[j] += beta * up(present.v[j]);
			}
			*to = pack_of<T>(out);
		});
	}
	if (!a.part) return;
	const u32 lane = threadIdx.x % 32;
	for (u32 y = 0; y < blockDim.y; y++) { // the block's rows are added warp by warp
		if (threadIdx.y == y)
#pragma unroll
			for (int i = 0; i < PACKS; i++)
#pragma unroll
				for (int j = 0; j < N; j++) {
					float *s = &fold[0][i * N + j][lane], *q = &fold[1][i * N + j][lane];
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
	float4 *part = (float4 *)a.part + blockIdx.x * a.cols / 2;
	Row::each(packs, [](int, int) {}, [&](int i, u32 at) {
#pragma unroll
		for (int j = 0; j < N; j += 4) {
			part[(at * N + j) / 4] = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
			part[(a.cols + at * N + j) / 4] = make_float4(products[i][j], products[i][j + 1], products[i][j + 2], products[i][j + 3]);
		}
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

// Kernels for fewer elements per thread use fewer registers. 16-bit elements leave enough registers for two blocks of
// ROW_WARPS warps per multiprocessor.
#define ROW_BLOCKS(T) (sizeof(T) == 2 ? 2 : 1)
#define EXPORT(name, T, HELD) \
	extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS, ROW_BLOCKS(T)) row_norm_##HELD##_##name(const RowNorm a) { await_earlier(); row_norm<T, HELD>(a); } \
	extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS, ROW_BLOCKS(T)) row_norm_grad_##HELD##_##name(const RowNorm a) { \
		__shared__ float fold[2][HELD][32]; \
		if (a.addend || a.acc.beta != 0) row_norm_grad<T, HELD, true>(a, fold); \
		else row_norm_grad<T, HELD, false>(a, fold); \
	}
#define EXPORT_BOTH(name, T) \
	EXPORT(name, T, 16) \
	EXPORT(name, T, 24) \
	EXPORT(name, T, 32) \
	extern "C" __global__ void row_norm_fold_##name(const RowNorm a) { row_norm_fold<T>(a); }
FLOAT32(EXPORT_BOTH)
EACH_16_BIT(EXPORT_BOTH)
