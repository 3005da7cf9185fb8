// Attention of 16-bit types on tensor cores. A block has 4 warps, each with M times 16
// rows of its own, whose factors and sums stay in registers in the layouts of
// mma.m16n8k16, in which a thread of group g = lane/4 and place t = lane%4 has, of a tile
//
//	of 16 × 16 on the left    [g][2t 2t+1], [g+8][2t 2t+1], [g][2t+8 2t+9], [g+8][2t+8 2t+9]
//	of 16 × 8 on the right    [2t 2t+1][g], [2t+8 2t+9][g]
//	of 16 × 8 of a sum        [g][2t], [g][2t+1], [g+8][2t], [g+8][2t+1]
//
// so that two tiles of a sum, rounded, are one on the left. Factors on the right come
// from tiles of R rows in shared memory, N rows at a time. Rows lie 16 bytes more than
// their length apart: eight rows' 16 bytes are then in different banks. There are two
// buffers for tiles: while the warps compute with one, the next tile is copied into the
// other.
//
// A score is the product of a query and a key alone: a.scale, which is positive, is applied
// within the exponential, so that the largest score is the same with and without it.

static const int WARPS = 4, THREADS = 32 * WARPS;
static const float LOG2E = 1.4426950408889634f;

// Tile is R rows of D elements in shared memory.
template <int R, int D> struct Tile {
	static const int pitch = D + 8;
	alignas(16) u16 v[R * pitch];
};

// Single hardware instructions, each with an equivalent in C++ for the emulation on hosts.

// mma adds the product of a, on the left, and b, on the right, to c.
template <class T> __device__ inline void mma(float *c, const u32 *a, u32 b0, u32 b1);
#ifdef __CUDACC__
template <> __device__ inline void mma<bf16>(float *c, const u32 *a, u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void mma<f16>(float *c, const u32 *a, u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// exp2_ is 2 to the power of v, within 2 units in the last place.
__device__ inline float exp2_(float v) {
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}
// Shared is an address in shared memory; after returns the address of a later element.
typedef u32 Shared;
__device__ inline Shared shared(const void *p) {
	u32 r;
	asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(r) : "l"(p));
	return r;
}
__device__ inline Shared after(Shared s, int elements) { return s + 2 * elements; }
// load_matrices loads four 8 × 8 matrices. Lane 8i + r passes the address of row r of matrix i;
// each thread gets [g][2t 2t+1] of each matrix.
__device__ inline void load_matrices(u32 *m, Shared row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row) : "memory");
}
// load_transposed loads them transposed: each thread gets [2t 2t+1][g] of each matrix.
__device__ inline void load_transposed(u32 *m, Shared row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row) : "memory");
}
// copy16 starts an asynchronous copy of 16 bytes to shared memory, copy4 of 4 bytes; out of range
// they store zeros.
__device__ inline void copy16(Shared to, const void *from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copy4(Shared to, const void *from, bool there) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
// wait_copies waits for the thread's copies.
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
template <class T> __device__ inline float half_of(u32 pair, int high) {
	T v;
	v.bits = (u16)(pair >> (16 * high));
	return up(v);
}
template <class T> __device__ inline void mma(float *c, const u32 *a, u32 b0, u32 b1) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int k = 0; k < 8; k++) { // pairs
		const u32 b = k < 4 ? b0 : b1;
		const u32 upper = __shfl_sync(0xffffffffu, a[k / 4 * 2], 4 * g + k % 4), lower = __shfl_sync(0xffffffffu, a[k / 4 * 2 + 1], 4 * g + k % 4);
		const u32 left = __shfl_sync(0xffffffffu, b, 8 * t + k % 4), right = __shfl_sync(0xffffffffu, b, 8 * t + 4 + k % 4);
		for (int high = 0; high < 2; high++) {
			c[0] += half_of<T>(upper, high) * half_of<T>(left, high);
			c[1] += half_of<T>(upper, high) * half_of<T>(right, high);
			c[2] += half_of<T>(lower, high) * half_of<T>(left, high);
			c[3] += half_of<T>(lower, high) * half_of<T>(right, high);
		}
	}
}
__device__ inline float exp2_(float v) { return exp2f(v); }
typedef u16 *Shared;
__device__ inline Shared shared(const void *p) { return (u16 *)p; }
__device__ inline Shared after(Shared s, int elements) { return s + elements; }
__device__ inline void load_matrices(u32 *m, Shared row) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int i = 0; i < 4; i++) {
		const u16 *from = (const u16 *)__shfl_sync(0xffffffffu, (u64)row, 8 * i + g);
		m[i] = from[2 * t] | (u32)from[2 * t + 1] << 16;
	}
}
__device__ inline void load_transposed(u32 *m, Shared row) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int i = 0; i < 4; i++) {
		const u16 *low = (const u16 *)__shfl_sync(0xffffffffu, (u64)row, 8 * i + 2 * t);
		const u16 *high = (const u16 *)__shfl_sync(0xffffffffu, (u64)row, 8 * i + 2 * t + 1);
		m[i] = low[g] | (u32)high[g] << 16;
	}
}
__device__ inline void copy16(Shared to, const void *from, bool there) {
	for (int i = 0; i < 8; i++) to[i] = there ? ((const u16 *)from)[i] : 0;
}
__device__ inline void copy4(Shared to, const void *from, bool there) {
	for (int i = 0; i < 2; i++) to[i] = there ? ((const u16 *)from)[i] : 0;
}
__device__ inline void wait_copies() {}
#endif

// copy_tile starts the copy of up to R rows of d elements; the rest is set to zero.
template <int R, int D, class T> __device__ inline void copy_tile(Shared to, const T *from, i64 stride, i64 rows, i64 d) {
	const int packs = D / 8, step = THREADS / packs, first = threadIdx.x / packs, c = threadIdx.x % packs * 8;
	const int end = c < d ? (int)smaller(rows, R) : 0;
	const T *p = from + first * stride + c;
	to = after(to, first * Tile<R, D>::pitch + c);
#pragma unroll
	for (int r = 0; r < R; r += step) {
		copy16(after(to, r * Tile<R, D>::pitch), first + r < end ? p : from, first + r < end);
		p += step * stride;
	}
}

// Left is 16 rows of D elements, as left operands of mma.
template <int D> struct Left {
	u32 v[D / 16][4];
	template <class T> __device__ void load(const T *from, i64 stride, i64 rows, i64 d) {
		const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int r = g + i % 2 * 8, c = k * 16 + i / 2 * 8 + 2 * t;
				v[k][i] = r < rows && c < d ? *(const u32 *)(from + r * stride + c) : 0;
			}
	}
};

// Sums is 16 rows of N sums. That of element e of column tile n is in row g + e/2*8,
// column 8n + 2t + e%2.
template <int N> struct Sums {
	float v[N / 8][4];
	__device__ void clear() {
#pragma unroll
		for (int n = 0; n < N / 8; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) v[n][e] = 0;
	}
	// factor returns columns 16k to 16k+15 as a left operand.
	template <class T> __device__ void factor(u32 *a, int k) const {
		a[0] = pack2<T>(v[2 * k][0], v[2 * k][1]);
		a[1] = pack2<T>(v[2 * k][2], v[2 * k][3]);
		a[2] = pack2<T>(v[2 * k + 1][0], v[2 * k + 1][1]);
		a[3] = pack2<T>(v[2 * k + 1][2], v[2 * k + 1][3]);
	}
};

// products computes the products of M times 16 rows of x with N rows of a tile y: x·yᵀ.
template <class T, int M, int N, int D> __device__ inline void products(Sums<N> *s, const Left<D> *x, Shared y) {
	const int lane = threadIdx.x % 32, pitch = Tile<N, D>::pitch;
#pragma unroll
	for (int m = 0; m < M; m++) s[m].clear();
	y = after(y, (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
#pragma unroll
		for (int n = 0; n < N / 16; n++) {
			u32 b[4];
			load_matrices(b, after(y, n * 16 * pitch + k * 16));
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma<T>(s[m].v[2 * n], x[m].v[k], b[0], b[1]);
				mma<T>(s[m].v[2 * n + 1], x[m].v[k], b[2], b[3]);
			}
		}
}

// add_rows adds p·y to sum, for N rows of a tile y. p has M times 16 rows of N numbers, and is
// rounded to T.
template <class T, int M, int N, int D> __device__ inline void add_rows(Sums<D> *sum, const Sums<N> *p, Shared y) {
	const int lane = threadIdx.x % 32, pitch = Tile<N, D>::pitch;
	y = after(y, (lane / 8 % 2 * 8 + lane % 8) * pitch + lane / 16 * 8);
#pragma unroll
	for (int k = 0; k < N / 16; k++) {
		u32 a[M][4];
#pragma unroll
		for (int m = 0; m < M; m++) p[m].template factor<T>(a[m], k);
#pragma unroll
		for (int n = 0; n < D / 16; n++) {
			u32 b[4];
			load_transposed(b, after(y, k * 16 * pitch + n * 16));
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma<T>(sum[m].v[2 * n], a[m], b[0], b[1]);
				mma<T>(sum[m].v[2 * n + 1], a[m], b[2], b[3]);
			}
		}
	}
}

// quad_max and quad_sum reduce over the four threads that share a row. quad_max may lose a NaN.
__device__ inline float quad_max(float v) {
#pragma unroll
	for (int lane = 1; lane < 4; lane *= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
	return v;
}
__device__ inline float quad_sum(float v) {
	v += __shfl_xor_sync(0xffffffffu, v, 1);
	return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

// hide_keys sets masked scores to -Inf, for 16 rows of queries from i on and N columns of keys from
// j on.
template <class T, int N> __device__ inline void hide_keys(const Attend &a, i64 batch, i64 mask, Sums<N> &s, i64 i, i64 j) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const i64 row = i + g + half * 8;
		const int begin = (int)smaller(first_key(a, batch, row) - j, N);
		const int end = (int)(a.causal ? smaller(smaller(a.s, row + 1) - j, N) : smaller(a.s - j, N));
#pragma unroll
		for (int n = 0; n < N / 8; n++)
#pragma unroll
			for (int e = half * 2; e < half * 2 + 2; e++) {
				const int c = n * 8 + 2 * t + e % 2;
				if (c < begin || c >= end) s.v[n][e] = (float)least();
			}
	}
	if (a.mask_kind == NO_MASK) return;
	const float added = 1 / (float)a.scale;
#pragma unroll
	for (int n = 0; n < N / 8; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			s.v[n][e] = masked<T, float>(a, batch, mask, i + g + e / 2 * 8, j + n * 8 + 2 * t + e % 2, s.v[n][e], added);
}

// hide_queries does the same for 16 rows of keys from j on and N columns of queries from i on. ends are the ends of the
// queries of the thread's two rows.
template <class T, int N> __device__ inline void hide_queries(const Attend &a, i64 batch, i64 mask, Sums<N> &s, i64 i, i64 j, const int *ends) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int begin = a.causal ? (int)smaller(j + g + half * 8 - i, N) : 0;
		const int end = (int)smaller(ends[half] - i, N);
#pragma unroll
		for (int n = 0; n < N / 8; n++)
#pragma unroll
			for (int e = half * 2; e < half * 2 + 2; e++) {
				const int c = n * 8 + 2 * t + e % 2;
				if (c < begin || c >= end) s.v[n][e] = (float)least();
			}
	}
	if (a.mask_kind == NO_MASK) return;
	const float added = 1 / (float)a.scale;
#pragma unroll
	for (int n = 0; n < N / 8; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			s.v[n][e] = masked<T, float>(a, batch, mask, i + n * 8 + 2 * t + e % 2, j + g + e / 2 * 8, s.v[n][e], added);
}

// attention: see attention_plain.cu.
template <class T, int D, int M, int R, int N> __device__ inline void attention(const Attend &a) {
	__shared__ Tile<R, D> tk[2], tv[2];
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, block = WARPS * M * 16;
	const Place at = place(a.heads, a.t, block, a.causal);
	const i64 key_head = divide(at.head, divide(a.heads, a.key_heads)), mask = at.batch * a.mask_batch + at.head * a.mask_head;
	const i64 keys = a.causal ? smaller(a.s, at.first + block) : a.s, first = at.first + warp * M * 16;
	const T *q = head_of<const T>(a.q, at.batch, at.head);
	const T *k = head_of<const T>(a.k, at.batch, key_head), *v = head_of<const T>(a.v, at.batch, key_head);
	const float none = (float)least(), scale = (float)a.scale, scale2 = scale * LOG2E;
	const Shared sk = shared(tk), sv = shared(tv);
	Left<D> x[M];
	Sums<D> sum[M];
	float top[M][2], total[M][2];
#pragma unroll
	for (int m = 0; m < M; m++) {
		x[m].load(q + (first + m * 16) * a.q.row, a.q.row, a.t - first - m * 16, a.d);
		sum[m].clear();
		top[m][0] = top[m][1] = none;
		total[m][0] = total[m][1] = 0;
	}
	auto copy = [&](i64 j, int buffer) {
		copy_tile<R, D>(after(sk, buffer * R * (D + 8)), k + j * a.k.row, a.k.row, a.s - j, a.d);
		copy_tile<R, D>(after(sv, buffer * R * (D + 8)), v + j * a.v.row, a.v.row, a.s - j, a.d);
	};
	const i64 begin = first_tile(a, at.batch, at.first, R);
	const int low = first_key(a, at.batch, first), high = first_key(a, at.batch, smaller(first + M * 16, a.t) - 1); // of the warp's queries
	if (keys > begin) copy(begin, 0);
	int buffer = 0;
	for (i64 tile = begin; tile < keys; tile += R, buffer ^= 1) {
		wait_copies();
		__syncthreads(); // the tile is there, and the other buffers were read
		if (tile + R < keys) copy(tile + R, buffer ^ 1);
		for (int part = 0; part < R; part += N) {
			const i64 j = tile + part;
			if (a.causal && j > first + M * 16 - 1) break;
			if (j + N <= low) continue;
			const int offset = (buffer * R + part) * (D + 8);
			Sums<N> s[M];
			products<T, M>(s, x, after(sk, offset));
			if (a.mask_kind != NO_MASK || j + N > a.s || (a.causal && j + N > first + 1) || j < high) {
#pragma unroll
				for (int m = 0; m < M; m++) hide_keys<T>(a, at.batch, mask, s[m], first + m * 16, j);
			}
#pragma unroll
			for (int m = 0; m < M; m++)
#pragma unroll
				for (int half = 0; half < 2; half++) {
					float most = none;
#pragma unroll
					for (int n = 0; n < N / 8; n++)
#pragma unroll
						for (int e = half * 2; e < half * 2 + 2; e++) most = fmaxf(most, s[m].v[n][e]);
					most = quad_max(most);
					const float now = fmaxf(top[m][half], most), shift = now == none ? 0 : now * scale2;
					const float less = exp2_(top[m][half] * scale2 - shift);
					top[m][half] = now;
					float part = 0;
#pragma unroll
					for (int n = 0; n < N / 8; n++)
#pragma unroll
						for (int e = half * 2; e < half * 2 + 2; e++) {
							s[m].v[n][e] = exp2_(s[m].v[n][e] * scale2 - shift);
							part += s[m].v[n][e];
						}
					total[m][half] = total[m][half] * less + part;
#pragma unroll
					for (int n = 0; n < D / 8; n++) {
						sum[m].v[n][half * 2] *= less;
						sum[m].v[n][half * 2 + 1] *= less;
					}
				}
			add_rows<T, M>(sum, s, after(sv, offset));
		}
	}
	T *o = head_of<T>(a.o, at.batch, at.head);
	float *lse = (float *)a.lse + (at.batch * a.heads + at.head) * a.t;
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const i64 i = first + m * 16 + half * 8 + g;
			const float all = quad_sum(total[m][half]), inverse = all == 0 ? 0 : 1 / all;
			if (i >= a.t) continue;
#pragma unroll
			for (int n = 0; n < D / 8; n++) {
				const int c = n * 8 + 2 * t;
				if (c < a.d) *(u32 *)(o + i * a.o.row + c) = pack2<T>(sum[m].v[n][half * 2] * inverse, sum[m].v[n][half * 2 + 1] * inverse);
			}
			if (t == 0) lse[i] = all == 0 ? -none : top[m][half] * scale + logf(all);
		}
}

// store accumulates 16 rows of sums, times a factor, into rows of dst from first on.
template <class T, int D> __device__ inline void store(const Heads &dst, const Place &at, i64 first, i64 rows, i64 d, const Accum &acc, const Sums<D> &sum, float factor) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const float alpha = (float)acc.alpha, beta = (float)acc.beta;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const i64 i = first + half * 8 + g;
		if (i >= rows) continue;
		T *to = head_of<T>(dst, at.batch, at.head) + i * dst.row + 2 * t;
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
			if (n * 8 >= d) continue;
			float low = alpha * (sum.v[n][half * 2] * factor), high = alpha * (sum.v[n][half * 2 + 1] * factor);
			if (beta != 0) {
				low += beta * up(to[n * 8]);
				high += beta * up(to[n * 8 + 1]);
			}
			*(u32 *)(to + n * 8) = pack2<T>(low, high);
		}
	}
}

template <class T, int D, int M, int R, int N> __device__ inline void attention_query_grad(const Attend &a) {
	__shared__ Tile<R, D> tk[2], tv[2];
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, block = WARPS * M * 16;
	const Place at = place(a.heads, a.t, block, a.causal);
	const i64 key_head = divide(at.head, divide(a.heads, a.key_heads)), mask = at.batch * a.mask_batch + at.head * a.mask_head;
	const i64 keys = a.causal ? smaller(a.s, at.first + block) : a.s, first = at.first + warp * M * 16;
	const T *k = head_of<const T>(a.k, at.batch, key_head), *v = head_of<const T>(a.v, at.batch, key_head);
	const T *q = head_of<const T>(a.q, at.batch, at.head), *o = head_of<const T>(a.o, at.batch, at.head);
	const float scale = (float)a.scale, scale2 = scale * LOG2E;
	const Shared sk = shared(tk), sv = shared(tv);
	Left<D> x[M], go[M];
	Sums<D> sum[M];
	float lse2[M][2], delta[M][2];
#pragma unroll
	for (int m = 0; m < M; m++) {
		const i64 i = first + m * 16, of = (at.batch * a.heads + at.head) * a.t;
		x[m].load(q + i * a.q.row, a.q.row, a.t - i, a.d);
		go[m].load(o + i * a.o.row, a.o.row, a.t - i, a.d);
		sum[m].clear();
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const i64 row = i + half * 8 + g;
			lse2[m][half] = row < a.t ? ((const float *)a.lse)[of + row] * LOG2E : 0;
			delta[m][half] = row < a.t ? ((const float *)a.delta)[of + row] : 0;
		}
	}
	auto copy = [&](i64 j, int buffer) {
		copy_tile<R, D>(after(sk, buffer * R * (D + 8)), k + j * a.k.row, a.k.row, a.s - j, a.d);
		copy_tile<R, D>(after(sv, buffer * R * (D + 8)), v + j * a.v.row, a.v.row, a.s - j, a.d);
	};
	const i64 begin = first_tile(a, at.batch, at.first, R);
	const int low = first_key(a, at.batch, first), high = first_key(a, at.batch, smaller(first + M * 16, a.t) - 1); // of the warp's queries
	if (keys > begin) copy(begin, 0);
	int buffer = 0;
	for (i64 tile = begin; tile < keys; tile += R, buffer ^= 1) {
		wait_copies();
		__syncthreads(); // the tile is there, and the other buffers were read
		if (tile + R < keys) copy(tile + R, buffer ^ 1);
		for (int part = 0; part < R; part += N) {
			const i64 j = tile + part;
			if (a.causal && j > first + M * 16 - 1) break;
			if (j + N <= low) continue;
			const int offset = (buffer * R + part) * (D + 8);
			Sums<N> s[M], ds[M];
			products<T, M>(s, x, after(sk, offset));
			products<T, M>(ds, go, after(sv, offset));
			if (a.mask_kind != NO_MASK || j + N > a.s || (a.causal && j + N > first + 1) || j < high) {
#pragma unroll
				for (int m = 0; m < M; m++) hide_keys<T>(a, at.batch, mask, s[m], first + m * 16, j);
			}
#pragma unroll
			for (int m = 0; m < M; m++)
#pragma unroll
				for (int n = 0; n < N / 8; n++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						ds[m].v[n][e] = exp2_(s[m].v[n][e] * scale2 - lse2[m][e / 2]) * (ds[m].v[n][e] - delta[m][e / 2]);
			add_rows<T, M>(sum, ds, after(sk, offset));
		}
	}
#pragma unroll
	for (int m = 0; m < M; m++) store<T>(a.dst, at, first + m * 16, a.t, a.d, a.acc, sum[m], scale);
}

// attention_key_value_grad: rows are keys, columns queries.
template <class T, int D, int M, int R, int N> __device__ inline void attention_key_value_grad(const Attend &a) {
	__shared__ Tile<R, D> tq[2], tg[2];
	__shared__ float2 lse[2][R / 2], delta[2][R / 2]; // of pairs of queries
	const int warp = threadIdx.x / 32, t = threadIdx.x % 4, block = WARPS * M * 16;
	const Place at = place(a.key_heads, a.s, block, false);
	const i64 group = (i64)divide(a.heads, a.key_heads), first = at.first + warp * M * 16;
	const T *kh = head_of<const T>(a.k, at.batch, at.head), *vh = head_of<const T>(a.v, at.batch, at.head);
	const float scale = (float)a.scale, scale2 = scale * LOG2E;
	const Shared sq = shared(tq), sg = shared(tg), sl = shared(lse), sd = shared(delta);
	Left<D> k[M], v[M];
	Sums<D> sum_k[M], sum_v[M];
#pragma unroll
	for (int m = 0; m < M; m++) {
		const i64 j = first + m * 16;
		k[m].load(kh + j * a.k.row, a.k.row, a.s - j, a.d);
		v[m].load(vh + j * a.v.row, a.v.row, a.s - j, a.d);
		sum_k[m].clear();
		sum_v[m].clear();
	}
	const i64 from = a.causal ? at.first / R * R : 0, end = end_of(a, at.batch, at.first + block); // of queries
	const int low = end_of(a, at.batch, first + 1), high = end_of(a, at.batch, first + M * 16); // of the queries of the warp's first key, and of its last
	int ends[M][2]; // of those of the thread's keys
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) ends[m][half] = end_of(a, at.batch, first + m * 16 + half * 8 + threadIdx.x % 32 / 4 + 1);
	const i64 last = (at.head + 1) * group; // of heads
	auto copy = [&](i64 head, i64 i, int buffer) {
		const int offset = buffer * R;
		copy_tile<R, D>(after(sq, offset * (D + 8)), head_of<const T>(a.q, at.batch, head) + i * a.q.row, a.q.row, a.t - i, a.d);
		copy_tile<R, D>(after(sg, offset * (D + 8)), head_of<const T>(a.o, at.batch, head) + i * a.o.row, a.o.row, a.t - i, a.d);
		if (threadIdx.x < R) {
			const i64 row = i + threadIdx.x, of = (at.batch * a.heads + head) * a.t + (row < a.t ? row : 0);
			copy4(after(sl, (offset + threadIdx.x) * 2), (const float *)a.lse + of, row < a.t);
			copy4(after(sd, (offset + threadIdx.x) * 2), (const float *)a.delta + of, row < a.t);
		}
	};
	i64 head = from < end ? at.head * group : last, tile = from;
	if (head < last) copy(head, tile, 0);
	for (int buffer = 0; head < last; buffer ^= 1) {
		wait_copies();
		__syncthreads(); // the tile is there, and the other buffers were read
		const i64 next = tile + R < end ? tile + R : from, next_head = head + (tile + R >= end);
		if (next_head < last) copy(next_head, next, buffer ^ 1);
		const i64 mask = at.batch * a.mask_batch + head * a.mask_head;
		for (int part = 0; part < R; part += N) {
			const i64 i = tile + part;
			if (a.causal && i + N <= first) continue;
			if (i >= high) continue;
			const int offset = (buffer * R + part) * (D + 8);
			Sums<N> p[M], ds[M];
			products<T, M>(p, k, after(sq, offset));
			products<T, M>(ds, v, after(sg, offset));
			if (a.mask_kind != NO_MASK || i + N > a.t || (a.causal && first + M * 16 - 1 > i) || i + N > low) {
#pragma unroll
				for (int m = 0; m < M; m++) hide_queries<T>(a, at.batch, mask, p[m], i, first + m * 16, ends[m]);
			}
#pragma unroll
			for (int c = 0; c < N / 8; c++) {
				const float2 l = lse[buffer][part / 2 + c * 4 + t], d = delta[buffer][part / 2 + c * 4 + t];
				const float lse2[2] = {l.x * LOG2E, l.y * LOG2E}, of[2] = {d.x, d.y};
#pragma unroll
				for (int m = 0; m < M; m++)
#pragma unroll
					for (int e = 0; e < 4; e++) {
						p[m].v[c][e] = exp2_(p[m].v[c][e] * scale2 - lse2[e % 2]);
						ds[m].v[c][e] = p[m].v[c][e] * (ds[m].v[c][e] - of[e % 2]);
					}
			}
			add_rows<T, M>(sum_v, p, after(sg, offset));
			add_rows<T, M>(sum_k, ds, after(sq, offset));
		}
		head = next_head;
		tile = next;
	}
#pragma unroll
	for (int m = 0; m < M; m++) {
		store<T>(a.dst, at, first + m * 16, a.s, a.d, a.acc, sum_k[m], scale);
		store<T>(a.dst2, at, first + m * 16, a.s, a.d, a.acc2, sum_v[m], 1);
	}
}

// The head sizes, and M, R and N of each kernel.
#define EXPORT_SIZE(size, m, r, n, mq, rq, nq, mk, rk, nk, name, T) \
	extern "C" __global__ void attention_##size##_##name(const Attend a) { attention<T, size, m, r, n>(a); } \
	extern "C" __global__ void attention_query_grad_##size##_##name(const Attend a) { attention_query_grad<T, size, mq, rq, nq>(a); } \
	extern "C" __global__ void attention_key_value_grad_##size##_##name(const Attend a) { attention_key_value_grad<T, size, mk, rk, nk>(a); }
// This source is compiled once for each head size. Each time, ONLY_HEAD is defined as the size. The
// sizes are those of mmaSizes in attention.go.
#if !defined(ONLY_HEAD) || ONLY_HEAD == 32
#define EXPORT_32(name, T) EXPORT_SIZE(32, 2, 64, 64, 2, 64, 32, 1, 64, 64, name, T)
EACH_16_BIT(EXPORT_32)
#endif
#if !defined(ONLY_HEAD) || ONLY_HEAD == 64
#define EXPORT_64(name, T) EXPORT_SIZE(64, 2, 64, 64, 2, 64, 32, 1, 64, 64, name, T)
EACH_16_BIT(EXPORT_64)
#endif
#if !defined(ONLY_HEAD) || ONLY_HEAD == 128
#define EXPORT_128(name, T) EXPORT_SIZE(128, 1, 32, 32, 1, 32, 32, 1, 32, 32, name, T)
EACH_16_BIT(EXPORT_128)
#endif
