// Attention in any type, with tiles of 32 queries and 32 keys. A block has 256 threads. Each warp
// computes 4 rows of a tile, and each of its lanes a column.

static const int TILE = 32, ROWS = 4;

__device__ inline float exp_(float v) { return expf(v); }
__device__ inline double exp_(double v) { return exp(v); }
__device__ inline float log_(float v) { return logf(v); }
__device__ inline double log_(double v) { return log(v); }

// load_tile copies up to 32 rows of up to 32 elements, and sets the rest of the tile to zero.
template <class T, class A> __device__ inline void load_tile(A (*to)[TILE + 1], const T *from, i64 stride, i64 rows, i64 cols) {
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		const int r = warp + 8 * i;
		to[r][lane] = r < rows && lane < cols ? up(from[r * stride + lane]) : A(0);
	}
}

// products computes the products of the warp's rows of x and the lane's row of y.
template <class T, class A>
__device__ inline void products(A *s, const T *x, i64 xs, i64 xn, const T *y, i64 ys, i64 yn, i64 d, A (*tx)[TILE + 1], A (*ty)[TILE + 1]) {
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	for (int i = 0; i < ROWS; i++) s[i] = 0;
	for (i64 from = 0; from < d; from += TILE) {
		__syncthreads(); // other threads may still read the tiles
		load_tile(tx, x + from, xs, xn, d - from);
		load_tile(ty, y + from, ys, yn, d - from);
		__syncthreads();
#pragma unroll 8
		for (int c = 0; c < TILE; c++) {
			const A v = ty[lane][c];
#pragma unroll
			for (int i = 0; i < ROWS; i++) s[i] += tx[warp * ROWS + i][c] * v;
		}
	}
}

// add_rows adds to sum the product of the warp's rows of p and the n rows of y. The lane computes
// the columns lane, 32 + lane and so on.
template <int C, class T, class A>
__device__ inline void add_rows(A (*sum)[C], A (*p)[TILE + 1], const T *y, i64 ys, i64 n, i64 d, A (*ty)[TILE + 1]) {
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
	for (int c = 0; c < C; c++) {
		if (c * TILE >= d) continue;
		__syncthreads(); // other threads may still read the tile
		load_tile(ty, y + c * TILE, ys, n, d - c * TILE);
		__syncthreads();
#pragma unroll 8
		for (int j = 0; j < TILE; j++) {
			const A v = ty[j][lane];
#pragma unroll
			for (int i = 0; i < ROWS; i++) sum[i][c] += p[warp * ROWS + i][j] * v;
		}
	}
}

template <class A> __device__ inline A warp_max(A v) {
	for (int lane = 16; lane > 0; lane /= 2) {
		const A o = __shfl_xor_sync(0xffffffffu, v, lane);
		v = o > v ? o : v;
	}
	return v;
}

// attention keeps, for each query, the largest score so far, the sum of exp(score - largest), and
// the sum of the values weighted by these. When it finds a larger score, it scales both sums down.
// A head has at most C times 32 columns.
template <class T, int C> __device__ inline void attention(const Attend &a) {
	typedef typename Arith<T>::type A;
	__shared__ A tx[TILE][TILE + 1], ty[TILE][TILE + 1], p[TILE][TILE + 1];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const Place at = place(a.heads, a.t, TILE, a.causal);
	const i64 key_head = at.head / (a.heads / a.key_heads), rows = smaller(TILE, a.t - at.first);
	const i64 keys = a.causal ? smaller(a.s, at.first + rows) : a.s;
	const i64 mask = at.batch * a.mask_batch + at.head * a.mask_head;
	const T *q = head_of<const T>(a.q, at.batch, at.head) + at.first * a.q.row;
	const T *k = head_of<const T>(a.k, at.batch, key_head), *v = head_of<const T>(a.v, at.batch, key_head);
	const A none = (A)least(), scale = (A)a.scale;
	A sum[ROWS][C] = {}, top[ROWS], total[ROWS];
	for (int i = 0; i < ROWS; i++) top[i] = none, total[i] = 0;
	for (i64 j = first_tile(a, at.batch, at.first, TILE); j < keys; j += TILE) {
		const i64 n = smaller(TILE, a.s - j);
		A s[ROWS];
		products(s, q, a.q.row, rows, k + j * a.k.row, a.k.row, n, a.d, tx, ty);
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const A score = masked<T, A>(a, at.batch, mask, at.first + warp * ROWS + i, j + lane, s[i] * scale, A(1));
			const A m = warp_max(score), now = m > top[i] ? m : top[i], shift = now == none ? A(0) : now;
			const A e = exp_(score - shift), less = exp_(top[i] - shift);
			total[i] = total[i] * less + (A)warp_sum(e);
			top[i] = now;
			p[warp * ROWS + i][lane] = e;
#pragma unroll
			for (int c = 0; c < C; c++) sum[i][c] *= less;
		}
		__syncwarp();
		add_rows<C>(sum, p, v + j * a.v.row, a.v.row, n, a.d, ty);
	}
	T *o = head_of<T>(a.o, at.batch, at.head);
	A *lse = (A *)a.lse + (at.batch * a.heads + at.head) * a.t;
	for (int i = 0; i < ROWS; i++) {
		const i64 r = at.first + warp * ROWS + i;
		if (r >= a.t) continue;
		const bool nothing = total[i] == 0;
#pragma unroll
		for (int c = 0; c < C; c++)
			if (c * TILE + lane < a.d) o[r * a.o.row + c * TILE + lane] = down<T>(nothing ? A(0) : sum[i][c] / total[i]);
		if (lane == 0) lse[r] = nothing ? -none : top[i] + log_(total[i]);
	}
}

// probability returns the probability of a score. It is 0 for -Inf, whatever the row's lse is.
template <class A> __device__ inline A probability(A score, A lse) { return score == (A)least() ? A(0) : exp_(score - lse); }

// score_grad returns the gradient with respect to a score whose probability is p.
template <class A> __device__ inline A score_grad(A score, A p, A dp, A delta) { return score == (A)least() ? A(0) : p * (dp - delta); }

template <class T, int C> __device__ inline void attention_query_grad(const Attend &a) {
	typedef typename Arith<T>::type A;
	__shared__ A tx[TILE][TILE + 1], ty[TILE][TILE + 1], ds[TILE][TILE + 1];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const Place at = place(a.heads, a.t, TILE, a.causal);
	const i64 key_head = at.head / (a.heads / a.key_heads), rows = smaller(TILE, a.t - at.first);
	const i64 keys = a.causal ? smaller(a.s, at.first + rows) : a.s;
	const i64 mask = at.batch * a.mask_batch + at.head * a.mask_head;
	const T *q = head_of<const T>(a.q, at.batch, at.head) + at.first * a.q.row;
	const T *g = head_of<const T>(a.o, at.batch, at.head) + at.first * a.o.row;
	const T *k = head_of<const T>(a.k, at.batch, key_head), *v = head_of<const T>(a.v, at.batch, key_head);
	const i64 head = (at.batch * a.heads + at.head) * a.t;
	const A scale = (A)a.scale;
	A sum[ROWS][C] = {}, lse[ROWS], delta[ROWS];
	for (int i = 0; i < ROWS; i++) {
		const i64 r = at.first + warp * ROWS + i;
		lse[i] = r < a.t ? ((const A *)a.lse)[head + r] : A(0);
		delta[i] = r < a.t ? ((const A *)a.delta)[head + r] : A(0);
	}
	for (i64 j = first_tile(a, at.batch, at.first, TILE); j < keys; j += TILE) {
		const i64 n = smaller(TILE, a.s - j);
		A s[ROWS], dp[ROWS];
		products(s, q, a.q.row, rows, k + j * a.k.row, a.k.row, n, a.d, tx, ty);
		products(dp, g, a.o.row, rows, v + j * a.v.row, a.v.row, n, a.d, tx, ty);
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const A score = masked<T, A>(a, at.batch, mask, at.first + warp * ROWS + i, j + lane, s[i] * scale, A(1));
			ds[warp * ROWS + i][lane] = score_grad(score, probability(score, lse[i]), dp[i], delta[i]) * scale;
		}
		__syncwarp();
		add_rows<C>(sum, ds, k + j * a.k.row, a.k.row, n, a.d, ty);
	}
	T *dq = head_of<T>(a.dst, at.batch, at.head);
	for (int i = 0; i < ROWS; i++) {
		const i64 r = at.first + warp * ROWS + i;
#pragma unroll
		for (int c = 0; c < C; c++)
			if (r < a.t && c * TILE + lane < a.d) accumulate(dq + r * a.dst.row + c * TILE + lane, a.acc, sum[i][c]);
	}
}

// attention_key_value_grad computes a tile whose rows are keys and whose columns are queries.
template <class T, int C> __device__ inline void attention_key_value_grad(const Attend &a) {
	typedef typename Arith<T>::type A;
	__shared__ A tx[TILE][TILE + 1], ty[TILE][TILE + 1], p[TILE][TILE + 1];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const Place at = place(a.key_heads, a.s, TILE, false);
	const i64 group = a.heads / a.key_heads, rows = smaller(TILE, a.s - at.first), end = end_of(a, at.batch, at.first + rows);
	const T *k = head_of<const T>(a.k, at.batch, at.head) + at.first * a.k.row;
	const T *v = head_of<const T>(a.v, at.batch, at.head) + at.first * a.v.row;
	const A scale = (A)a.scale;
	A sum_k[ROWS][C] = {}, sum_v[ROWS][C] = {};
	for (i64 head = at.head * group; head < (at.head + 1) * group; head++) {
		const T *q = head_of<const T>(a.q, at.batch, head), *g = head_of<const T>(a.o, at.batch, head);
		const i64 of = (at.batch * a.heads + head) * a.t, mask = at.batch * a.mask_batch + head * a.mask_head;
		for (i64 i = a.causal ? at.first : 0; i < end; i += TILE) {
			const i64 n = smaller(TILE, a.t - i), column = i + lane;
			const A lse = column < a.t ? ((const A *)a.lse)[of + column] : A(0);
			const A delta = column < a.t ? ((const A *)a.delta)[of + column] : A(0);
			A s[ROWS], ds[ROWS];
			products(s, k, a.k.row, rows, q + i * a.q.row, a.q.row, n, a.d, tx, ty);
			products(ds, v, a.v.row, rows, g + i * a.o.row, a.o.row, n, a.d, tx, ty);
#pragma unroll
			for (int r = 0; r < ROWS; r++) {
				const A score = masked<T, A>(a, at.batch, mask, column, at.first + warp * ROWS + r, s[r] * scale, A(1));
				const A prob = probability(score, lse);
				p[warp * ROWS + r][lane] = prob;
				ds[r] = score_grad(score, prob, ds[r], delta) * scale;
			}
			__syncwarp();
			add_rows<C>(sum_v, p, g + i * a.o.row, a.o.row, n, a.d, ty);
			__syncwarp();
			for (int r = 0; r < ROWS; r++) p[warp * ROWS + r][lane] = ds[r];
			__syncwarp();
			add_rows<C>(sum_k, p, q + i * a.q.row, a.q.row, n, a.d, ty);
		}
	}
	T *dk = head_of<T>(a.dst, at.batch, at.head), *dv = head_of<T>(a.dst2, at.batch, at.head);
	for (int i = 0; i < ROWS; i++) {
		const i64 r = at.first + warp * ROWS + i;
#pragma unroll
		for (int c = 0; c < C; c++) {
			const i64 column = c * TILE + lane;
			if (r >= a.s || column >= a.d) continue;
			accumulate(dk + r * a.dst.row + column, a.acc, sum_k[i][c]);
			accumulate(dv + r * a.dst2.row + column, a.acc2, sum_v[i][c]);
		}
	}
}

// attention_delta computes each row with 8 threads. o is the gradient, and q the result of the
// attention.
template <class T> __device__ inline void attention_delta(const Attend &a, u64 rows) {
	typedef typename Arith<T>::type A;
	const int N = Pack<T>::N, lane = threadIdx.x % 8;
	for (u64 r = global_thread() / 8; r < (rows + 3) / 4 * 4; r += global_threads() / 8) { // rounded up, so that whole warps take part
		double sum = 0;
		if (r < rows) {
			const i64 at = divide(r, a.t), i = r - at * a.t, batch = divide(at, a.heads), head = at - batch * a.heads;
			const T *g = head_of<const T>(a.o, batch, head) + i * a.o.row, *o = head_of<const T>(a.q, batch, head) + i * a.q.row;
			if (((u64)g | (u64)o) % sizeof(Pack<T>) == 0 && a.d % N == 0) {
				for (i64 c = lane * N; c < a.d; c += 8 * N) {
					Pack<T> x, y;
					x.load(g + c);
					y.load(o + c);
#pragma unroll
					for (int e = 0; e < N; e++) sum += (double)(up(x.v[e]) * up(y.v[e]));
				}
			} else {
				for (i64 c = lane; c < a.d; c += 8) sum += (double)(up(g[c]) * up(o[c]));
			}
		}
#pragma unroll
		for (int from = 4; from > 0; from /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, from);
		if (r < rows && lane == 0) ((A *)a.delta)[r] = (A)sum;
	}
}

#define EXPORT_SIZE(size, name, T) \
	extern "C" __global__ void attention_##size##_##name(const Attend a) { attention<T, size / 32>(a); } \
	extern "C" __global__ void attention_query_grad_##size##_##name(const Attend a) { attention_query_grad<T, size / 32>(a); } \
	extern "C" __global__ void attention_key_value_grad_##size##_##name(const Attend a) { attention_key_value_grad<T, size / 32>(a); }
#define EXPORT(name, T) \
	EXPORT_SIZE(64, name, T) EXPORT_SIZE(256, name, T) \
	extern "C" __global__ void attention_delta_##name(const Attend a) { attention_delta<T>(a, a.s); }
EACH_FLOAT(EXPORT)
