// Attention of 16-bit types on tensor cores. A block has 4 warps, each with rows of its
// own: 16, or two times 16. A warp's matrices are in registers in the layouts of
// mma.m16n8k16, in which a thread of group g = lane/4 and place t = lane%4 has, of a tile
//
//	of 16 × 16 on the left    [g][2t 2t+1], [g+8][2t 2t+1], [g][2t+8 2t+9], [g+8][2t+8 2t+9]
//	of 16 × 8 on the right    [2t 2t+1][g], [2t+8 2t+9][g]
//	of 16 × 8 of a sum        [g][2t], [g][2t+1], [g+8][2t], [g+8][2t+1]
//
// so that two tiles of a sum, rounded, are one on the left. What is on the right comes
// from shared memory, where rows lie 16 bytes more than their length apart: eight rows'
// 16 bytes are then in different banks.

static const int WARPS = 4, THREADS = 32 * WARPS;
static const float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

// Tile is N rows of D elements in shared memory.
template <int N, int D> struct Tile {
	static const int pitch = D + 8;
	alignas(16) u16 v[N * pitch];
};

// What the hardware does in one instruction, and beside it the same in C++, for hosts.

// mma adds the product of a, on the left, and b, on the right, to c.
template <class T> __device__ inline void mma(float *c, const u32 *a, u32 b0, u32 b1);
// pack2 rounds two numbers, the first to the lower half.
template <class T> __device__ inline u32 pack2(float low, float high);
#ifdef __CUDACC__
template <> __device__ inline void mma<bf16>(float *c, const u32 *a, u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void mma<f16>(float *c, const u32 *a, u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline u32 pack2<bf16>(float low, float high) {
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}
template <> __device__ inline u32 pack2<f16>(float low, float high) {
	u32 r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}
// exp2_ is 2 to the power of v, within 2 units in the last place.
__device__ inline float exp2_(float v) {
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}
__device__ inline u32 shared_address(const void *p) {
	u32 r;
	asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(r) : "l"(p));
	return r;
}
// load_matrices loads four matrices of 8 × 8, of which lane 8i + r has the address of row
// r of number i: each thread gets [g][2t 2t+1] of each.
__device__ inline void load_matrices(u32 *m, const u16 *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}
// load_transposed loads them transposed: each thread gets [2t 2t+1][g] of each.
__device__ inline void load_transposed(u32 *m, const u16 *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}
// copy16 begins a copy of 16 bytes to shared memory, of zeros where there is nothing.
__device__ inline void copy16(u16 *to, const void *from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// copies_begun ends a group of copies; wait_copies waits for all groups but the last few.
__device__ inline void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int few> __device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(few) : "memory"); }
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
template <class T> __device__ inline u32 pack2(float low, float high) { return down<T>(low).bits | (u32)down<T>(high).bits << 16; }
__device__ inline float exp2_(float v) { return exp2f(v); }
__device__ inline void load_matrices(u32 *m, const u16 *row) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int i = 0; i < 4; i++) {
		const u16 *from = (const u16 *)__shfl_sync(0xffffffffu, (u64)row, 8 * i + g);
		m[i] = from[2 * t] | (u32)from[2 * t + 1] << 16;
	}
}
__device__ inline void load_transposed(u32 *m, const u16 *row) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	for (int i = 0; i < 4; i++) {
		const u16 *low = (const u16 *)__shfl_sync(0xffffffffu, (u64)row, 8 * i + 2 * t);
		const u16 *high = (const u16 *)__shfl_sync(0xffffffffu, (u64)row, 8 * i + 2 * t + 1);
		m[i] = low[g] | (u32)high[g] << 16;
	}
}
__device__ inline void copy16(u16 *to, const void *from, bool there) {
	for (int i = 0; i < 8; i++) to[i] = there ? ((const u16 *)from)[i] : 0;
}
__device__ inline void copies_begun() {}
template <int few> __device__ inline void wait_copies() {}
#endif

// copy_tile begins the copy of up to N rows of d elements; the rest become zeros.
template <int N, int D, class T> __device__ inline void copy_tile(Tile<N, D> &to, const T *from, i64 stride, i64 rows, i64 d) {
	const int packs = D / 8;
#pragma unroll
	for (int i = threadIdx.x; i < N * packs; i += THREADS) {
		const int r = i / packs, c = i % packs * 8;
		const bool there = r < rows && c < d;
		copy16(to.v + r * Tile<N, D>::pitch + c, there ? from + r * stride + c : from, there);
	}
}

// Left is 16 rows of D elements, as factors on the left.
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
	// factor is columns 16k to 16k+15, as a factor on the left.
	template <class T> __device__ void factor(u32 *a, int k) const {
		a[0] = pack2<T>(v[2 * k][0], v[2 * k][1]);
		a[1] = pack2<T>(v[2 * k][2], v[2 * k][3]);
		a[2] = pack2<T>(v[2 * k + 1][0], v[2 * k + 1][1]);
		a[3] = pack2<T>(v[2 * k + 1][2], v[2 * k + 1][3]);
	}
};

// products computes the products of M times 16 rows of x with the rows of y: x·yᵀ.
template <class T, int M, int N, int D> __device__ inline void products(Sums<N> *s, const Left<D> *x, const Tile<N, D> &y) {
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int m = 0; m < M; m++) s[m].clear();
	const u16 *row = y.v + (lane / 16 * 8 + lane % 8) * Tile<N, D>::pitch + lane / 8 % 2 * 8;
#pragma unroll
	for (int k = 0; k < D / 16; k++)
#pragma unroll
		for (int n = 0; n < N / 16; n++) {
			u32 b[4];
			load_matrices(b, row + n * 16 * Tile<N, D>::pitch + k * 16);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma<T>(s[m].v[2 * n], x[m].v[k], b[0], b[1]);
				mma<T>(s[m].v[2 * n + 1], x[m].v[k], b[2], b[3]);
			}
		}
}

// add_rows adds p·y to sum: p, M times 16 rows of N numbers, is rounded to T.
template <class T, int M, int N, int D> __device__ inline void add_rows(Sums<D> *sum, const Sums<N> *p, const Tile<N, D> &y) {
	const int lane = threadIdx.x % 32;
	const u16 *row = y.v + (lane / 8 % 2 * 8 + lane % 8) * Tile<N, D>::pitch + lane / 16 * 8;
#pragma unroll
	for (int k = 0; k < N / 16; k++) {
		u32 a[M][4];
#pragma unroll
		for (int m = 0; m < M; m++) p[m].template factor<T>(a[m], k);
#pragma unroll
		for (int n = 0; n < D / 16; n++) {
			u32 b[4];
			load_transposed(b, row + k * 16 * Tile<N, D>::pitch + n * 16);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma<T>(sum[m].v[2 * n], a[m], b[0], b[1]);
				mma<T>(sum[m].v[2 * n + 1], a[m], b[2], b[3]);
			}
		}
	}
}

// quad_max and quad_sum are over the four threads that share a row. quad_max may lose a NaN.
__device__ inline float quad_max(float v) {
#pragma unroll
	for (int lane = 1; lane < 4; lane *= 2) {
		const float o = __shfl_xor_sync(0xffffffffu, v, lane);
		v = o > v ? o : v;
	}
	return v;
}
__device__ inline float quad_sum(float v) {
	v += __shfl_xor_sync(0xffffffffu, v, 1);
	return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

// attention: see attention_plain.cu. A warp has M times 16 queries. Scores are kept
// without a.scale, which is positive. Values are on their way while the scores are
// computed, and the next keys while the values are multiplied.
template <class T, int D, int M> __device__ inline void attention(const Attend &a) {
	const int N = 64;
	__shared__ Tile<N, D> tk, tv;
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, block = WARPS * M * 16;
	const Place at = place(a.heads, a.t, block, a.causal);
	const i64 key_head = at.head / (a.heads / a.key_heads), mask = at.batch * a.mask_batch + at.head * a.mask_head;
	const i64 keys = a.causal ? smaller(a.s, at.first + block) : a.s, first = at.first + warp * M * 16;
	const T *q = head_of<const T>(a.q, at.batch, at.head);
	const T *k = head_of<const T>(a.k, at.batch, key_head), *v = head_of<const T>(a.v, at.batch, key_head);
	const float none = (float)least(), scale = (float)a.scale, scale2 = scale * LOG2E, added = 1 / scale;
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
	if (keys > 0) copy_tile(tk, k, a.k.row, a.s, a.d);
	copies_begun();
	for (i64 j = 0; j < keys; j += N) {
		wait_copies<0>();
		__syncthreads(); // the keys are there, and the last values were read
		copy_tile(tv, v + j * a.v.row, a.v.row, a.s - j, a.d);
		copies_begun();
		Sums<N> s[M];
		products<T, M>(s, x, tk);
		wait_copies<0>();
		__syncthreads(); // the values are there, and the keys were read
		if (j + N < keys) copy_tile(tk, k + (j + N) * a.k.row, a.k.row, a.s - j - N, a.d);
		copies_begun();
		const bool whole = a.mask_kind == NO_MASK && j + N <= a.s && !(a.causal && j + N > first + 1);
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const i64 i = first + m * 16 + half * 8 + g;
				float most = none;
#pragma unroll
				for (int n = 0; n < N / 8; n++)
#pragma unroll
					for (int e = half * 2; e < half * 2 + 2; e++) {
						if (!whole) s[m].v[n][e] = masked<T, float>(a, mask, i, j + n * 8 + 2 * t + e % 2, s[m].v[n][e], added);
						most = s[m].v[n][e] > most ? s[m].v[n][e] : most;
					}
				most = quad_max(most);
				const float now = most > top[m][half] ? most : top[m][half], shift = now == none ? 0 : now * scale2;
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
		add_rows<T, M>(sum, s, tv);
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

// store accumulates 16 rows of sums, times a factor, into those of dst from first on.
template <class T, int D> __device__ inline void store(const Heads &dst, const Place &at, i64 first, i64 rows, i64 d, const Accum &acc, const Sums<D> &sum, float factor) {
	const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	T *to = head_of<T>(dst, at.batch, at.head);
#pragma unroll
	for (int n = 0; n < D / 8; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const i64 i = first + e / 2 * 8 + g, c = n * 8 + 2 * t + e % 2;
			if (i < rows && c < d) accumulate(to + i * dst.row + c, acc, sum.v[n][e] * factor);
		}
}

template <class T, int D, int N> __device__ inline void attention_query_grad(const Attend &a) {
	__shared__ Tile<N, D> tk[2], tv[2];
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, block = WARPS * 16;
	const Place at = place(a.heads, a.t, block, a.causal);
	const i64 key_head = at.head / (a.heads / a.key_heads), mask = at.batch * a.mask_batch + at.head * a.mask_head;
	const i64 keys = a.causal ? smaller(a.s, at.first + block) : a.s, first = at.first + warp * 16;
	const T *k = head_of<const T>(a.k, at.batch, key_head), *v = head_of<const T>(a.v, at.batch, key_head);
	const float none = (float)least(), scale = (float)a.scale, scale2 = scale * LOG2E, added = 1 / scale;
	Left<D> q, go;
	q.load(head_of<const T>(a.q, at.batch, at.head) + first * a.q.row, a.q.row, a.t - first, a.d);
	go.load(head_of<const T>(a.o, at.batch, at.head) + first * a.o.row, a.o.row, a.t - first, a.d);
	float lse2[2], delta[2];
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const i64 i = first + half * 8 + g, of = (at.batch * a.heads + at.head) * a.t + i;
		lse2[half] = i < a.t ? ((const float *)a.lse)[of] * LOG2E : 0;
		delta[half] = i < a.t ? ((const float *)a.delta)[of] : 0;
	}
	Sums<D> sum;
	sum.clear();
	auto copy = [&](i64 j) {
		copy_tile(tk[j / N % 2], k + j * a.k.row, a.k.row, a.s - j, a.d);
		copy_tile(tv[j / N % 2], v + j * a.v.row, a.v.row, a.s - j, a.d);
	};
	if (keys > 0) copy(0);
	copies_begun();
	for (i64 j = 0; j < keys; j += N) {
		if (j + N < keys) copy(j + N);
		copies_begun();
		wait_copies<1>();
		__syncthreads();
		Sums<N> s, ds;
		products<T, 1>(&s, &q, tk[j / N % 2]);
		products<T, 1>(&ds, &go, tv[j / N % 2]);
		const bool whole = a.mask_kind == NO_MASK && j + N <= a.s && !(a.causal && j + N > first + 1);
#pragma unroll
		for (int n = 0; n < N / 8; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				float score = s.v[n][e];
				if (!whole) score = masked<T, float>(a, mask, first + e / 2 * 8 + g, j + n * 8 + 2 * t + e % 2, score, added);
				const float grad = exp2_(score * scale2 - lse2[e / 2]) * (ds.v[n][e] - delta[e / 2]);
				ds.v[n][e] = score == none ? 0 : grad;
			}
		add_rows<T, 1>(&sum, &ds, tk[j / N % 2]);
		__syncthreads(); // the tiles were read
	}
	store<T>(a.dst, at, first, a.t, a.d, a.acc, sum, scale);
}

// attention_key_value_grad: rows are keys, columns queries.
template <class T, int D, int N> __device__ inline void attention_key_value_grad(const Attend &a) {
	__shared__ Tile<N, D> tq[2], tg[2];
	__shared__ float lse2[2][N], delta[2][N];
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, block = WARPS * 16;
	const Place at = place(a.key_heads, a.s, block, false);
	const i64 group = a.heads / a.key_heads, first = at.first + warp * 16;
	const float none = (float)least(), scale = (float)a.scale, scale2 = scale * LOG2E, added = 1 / scale;
	Left<D> k, v;
	k.load(head_of<const T>(a.k, at.batch, at.head) + first * a.k.row, a.k.row, a.s - first, a.d);
	v.load(head_of<const T>(a.v, at.batch, at.head) + first * a.v.row, a.v.row, a.s - first, a.d);
	Sums<D> sum_k, sum_v;
	sum_k.clear();
	sum_v.clear();
	// Tiles of the group's queries are numbered through: n of them for each head.
	const i64 from = a.causal ? at.first / N * N : 0, n = a.t > from ? (a.t - from + N - 1) / N : 0;
	auto copy = [&](i64 number) {
		const i64 head = at.head * group + number / n, i = from + number % n * N;
		copy_tile(tq[number % 2], head_of<const T>(a.q, at.batch, head) + i * a.q.row, a.q.row, a.t - i, a.d);
		copy_tile(tg[number % 2], head_of<const T>(a.o, at.batch, head) + i * a.o.row, a.o.row, a.t - i, a.d);
		if (threadIdx.x < N) {
			const i64 row = i + threadIdx.x, of = (at.batch * a.heads + head) * a.t + row;
			lse2[number % 2][threadIdx.x] = row < a.t ? ((const float *)a.lse)[of] * LOG2E : 0;
			delta[number % 2][threadIdx.x] = row < a.t ? ((const float *)a.delta)[of] : 0;
		}
	};
	if (n > 0) copy(0);
	copies_begun();
	for (i64 number = 0; number < n * group; number++) {
		if (number + 1 < n * group) copy(number + 1);
		copies_begun();
		wait_copies<1>();
		__syncthreads();
		const int at2 = number % 2;
		const i64 i = from + number % n * N, mask = at.batch * a.mask_batch + (at.head * group + number / n) * a.mask_head;
		Sums<N> p, ds;
		products<T, 1>(&p, &k, tq[at2]);
		products<T, 1>(&ds, &v, tg[at2]);
		const bool whole = a.mask_kind == NO_MASK && i + N <= a.t && first + 16 <= a.s && !(a.causal && first + 15 > i);
#pragma unroll
		for (int c = 0; c < N / 8; c++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int column = c * 8 + 2 * t + e % 2;
				float score = p.v[c][e];
				if (!whole) score = masked<T, float>(a, mask, i + column, first + e / 2 * 8 + g, score, added);
				const float prob = score == none ? 0 : exp2_(score * scale2 - lse2[at2][column]);
				p.v[c][e] = prob;
				ds.v[c][e] = score == none ? 0 : prob * (ds.v[c][e] - delta[at2][column]);
			}
		add_rows<T, 1>(&sum_v, &p, tg[at2]);
		add_rows<T, 1>(&sum_k, &ds, tq[at2]);
		__syncthreads(); // the tiles were read
	}
	store<T>(a.dst, at, first, a.s, a.d, a.acc, sum_k, scale);
	store<T>(a.dst2, at, first, a.s, a.d, a.acc2, sum_v, 1);
}

// The sizes of heads, how many times 16 queries a warp has, and the columns of a tile of
// the gradients: as many as registers hold.
#define EXPORT_SIZE(size, m, n, name, T) \
	extern "C" __global__ void attention_##size##_##name(const Attend a) { attention<T, size, m>(a); } \
	extern "C" __global__ void attention_query_grad_##size##_##name(const Attend a) { attention_query_grad<T, size, n>(a); } \
	extern "C" __global__ void attention_key_value_grad_##size##_##name(const Attend a) { attention_key_value_grad<T, size, n>(a); }
#define EXPORT(name, T) EXPORT_SIZE(32, 2, 64, name, T) EXPORT_SIZE(64, 2, 64, name, T) EXPORT_SIZE(128, 1, 32, name, T)
EXPORT(float16, f16)
EXPORT(bfloat16, bf16)
