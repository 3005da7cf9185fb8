// Attention of one query for each row to a cache of keys and values, and writing to such a cache.

struct WriteRows {
	u64 dst, src, first;
	u64 s, t, n, width; // dst is [b s n], src [b t n]; width is the number of elements, or of packs of 16 bytes, in a row
	i32 wide;
};

// write_rows has a thread for each element or pack of src: rows along x, a row along y.
template <class T> __device__ inline void write_rows(const WriteRows &a) {
	const u64 row = blockIdx.x, b = row / a.t;
	const i64 at = ((const i64 *)a.first)[b] + (i64)(row % a.t);
	if (at < 0 || at >= (i64)a.s) return;
	const u64 from = row * a.width, to = (b * a.s + at) * a.width;
	for (u64 i = blockIdx.y * (u64)blockDim.x + threadIdx.x; i < a.width; i += gridDim.y * (u64)blockDim.x) {
		if (a.wide) ((uint4 *)a.dst)[to + i] = ((const uint4 *)a.src)[from + i];
		else ((T *)a.dst)[to + i] = ((const T *)a.src)[from + i];
	}
}

// The keys of a row are divided among blocks, SPLIT positions for each. If the row has several blocks, each writes its
// part, and the last one to arrive adds up all parts, in their order.
const int SPLIT = 512, GROUP = 4, MAX_D = 256, WARPS = 16, THREADS = 32 * WARPS;

struct AttendLast {
	u64 o, q, k, v, keys, values, last;
	u64 parts, sums; // [b h splits d] and, for each of these lines, its largest product and the sum of exponentials
	u64 arrived;     // u32 [b key_heads]: the number of blocks that have written their parts
	u64 s, window;   // window: 0 for none
	u32 heads, key_heads, d, splits;
	u32 group, chunks; // the heads of queries for a head of keys, and their chunks of at most GROUP heads
	double scale;
};

__device__ inline float exp_(float v) { return expf(v); }
__device__ inline double exp_(double v) { return exp(v); }

// lanes_for returns the smallest power of 2 from n on, at most 32.
__device__ inline u32 lanes_for(u32 n) {
	u32 l = 1;
	while (l < n && l < 32) l *= 2;
	return l;
}

// warp_top returns the largest v of a warp.
template <class A> __device__ inline A warp_top(A v) {
	for (int l = 16; l > 0; l /= 2) v = max(v, __shfl_xor_sync(0xffffffffu, v, l));
	return v;
}

// load_at loads the pack that starts at element at of a row of d elements. Elements behind the row are 0. With wide, the row
// is aligned and has whole packs.
template <class T> __device__ inline Pack<T> load_at(const T *row, u32 at, u32 d, bool wide) {
	Pack<T> p;
	p.raw = make_uint4(0, 0, 0, 0);
	if (wide) {
		if (at < d) p.load(row + at);
	} else {
#pragma unroll
		for (int j = 0; j < Pack<T>::N; j++)
			if (at + j < d) p.v[j] = row[at + j];
	}
	return p;
}

// Online is a sum of values, weighted by exponentials of products, divided by that of the largest product.
template <class A, int COLUMNS> struct Online {
	A top, total, sum[COLUMNS];

	// raise makes top at least best.
	__device__ void raise(A best) {
		best = max(best, top);
		const A keep = top < best ? exp_(top - best) : A(1);
		total *= keep;
#pragma unroll
		for (int c = 0; c < COLUMNS; c++) sum[c] *= keep;
		top = best;
	}
	// join adds what the threads have whose numbers differ in bit l.
	__device__ void join(u32 l) {
		raise(__shfl_xor_sync(0xffffffffu, top, l));
		total += __shfl_xor_sync(0xffffffffu, total, l);
#pragma unroll
		for (int c = 0; c < COLUMNS; c++) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], l);
	}
};

// The block is (head of keys and chunk of its queries, row, split). `lanes` threads read a key and its value together, each
// of them P packs, for all queries of the chunk. The loads of AHEAD positions are in flight at once.
template <class T> __device__ inline void attend_last(const AttendLast &a) {
	typedef typename Arith<T>::type A;
	const int N = Pack<T>::N, P = MAX_D / (32 * N), AHEAD = N / 2, COLUMNS = P * N;
	const A none = -__longlong_as_double(0x7ff0000000000000ll); // -∞
	__shared__ A part[WARPS][MAX_D], tops[WARPS], totals[WARPS];
	__shared__ u32 before;
	const u32 d = a.d, t = threadIdx.x, warp = t / 32, kept = blockIdx.x / a.chunks, skipped = blockIdx.x % a.chunks * GROUP;
	const u32 b = blockIdx.y, split = blockIdx.z, group = min(a.group - skipped, (u32)GROUP), packs = (d + N - 1) / N;
	const u32 lanes = lanes_for(packs), lane = t % lanes, slot = t / lanes, slots = THREADS / lanes;
	const u64 first_head = (u64)b * a.heads + kept * a.group + skipped, step = (u64)a.key_heads * d;
	await_earlier();
	const i64 last = ((const i64 *)a.last)[b];
	const u64 end = last >= 0 && last < (i64)a.s ? last + 1 : 0, start = a.window && end > a.window ? end - a.window : 0;
	const u32 from_split = start / SPLIT, to_split = end ? (end - 1) / SPLIT : 0; // the splits that have positions
	if (split < from_split || split > to_split) return;
	const u64 lo = max((u64)split * SPLIT, start), hi = min((split + 1ull) * SPLIT, end);
	const u32 n = hi > lo ? hi - lo : 0, fresh = hi == end ? n - 1 : SPLIT; // fresh is not in the cache yet
	const u64 row = ((b * a.s + lo) * a.key_heads + kept) * d, new_row = ((u64)b * a.key_heads + kept) * d;
	T *const keys = (T *)a.keys + row, *const values = (T *)a.values + row;
	const T *const new_key = (const T *)a.k + new_row, *const new_value = (const T *)a.v + new_row;
	const bool wide = d % N == 0 && (a.keys | a.values | a.k | a.v | a.q) % 16 == 0;

	Pack<T> key[AHEAD][P], value[AHEAD][P];
	auto load = [&](u32 first) {
#pragma unroll
		for (int u = 0; u < AHEAD; u++)
#pragma unroll
			for (int p = 0; p < P; p++) {
				const u32 i = first + slot + u * slots, at = (lane + p * lanes) * N;
				key[u][p] = load_at(i == fresh ? new_key : keys + i * step, at, i < n ? d : 0, wide);
				value[u][p] = load_at(i == fresh ? new_value : values + i * step, at, i < n ? d : 0, wide);
			}
	};
	load(0);
	if (lane == 0) // the other loads only wait for the L2 cache
		for (u32 i = slot + AHEAD * slots; i < n; i += slots) prefetch(keys + i * step, d * sizeof(T)), prefetch(values + i * step, d * sizeof(T));
	Online<A, COLUMNS> of[GROUP];
	A query[GROUP][COLUMNS];
#pragma unroll
	for (int g = 0; g < GROUP; g++) {
		of[g].top = none, of[g].total = 0;
#pragma unroll
		for (int p = 0; p < P; p++) {
			const Pack<T> pack = load_at((const T *)a.q + (first_head + g) * d, (lane + p * lanes) * N, g < group ? d : 0, wide);
#pragma unroll
			for (int j = 0; j < N; j++) query[g][p * N + j] = up(pack.v[j]) * (A)a.scale, of[g].sum[p * N + j] = 0;
		}
	}
	if (fresh < n)
		for (u32 i = t; i < d; i += THREADS) keys[fresh * step + i] = new_key[i], values[fresh * step + i] = new_value[i];
	for (u32 first = 0; first < n; first += AHEAD * slots) {
		if (first > 0) load(first);
#pragma unroll
		for (int g = 0; g < GROUP; g++) {
			if (g >= group) break;
			A product[AHEAD] = {}, best = none;
#pragma unroll
			for (int u = 0; u < AHEAD; u++)
#pragma unroll
				for (int c = 0; c < COLUMNS; c++) product[u] += up(key[u][c / N].v[c % N]) * query[g][c];
			for (u32 l = lanes / 2; l > 0; l /= 2)
#pragma unroll
				for (int u = 0; u < AHEAD; u++) product[u] += __shfl_xor_sync(0xffffffffu, product[u], l);
#pragma unroll
			for (int u = 0; u < AHEAD; u++)
				if (first + slot + u * slots < n) best = max(best, product[u]);
			of[g].raise(best);
#pragma unroll
			for (int u = 0; u < AHEAD; u++) {
				const A w = first + slot + u * slots < n ? exp_(product[u] - of[g].top) : A(0);
				of[g].total += w;
#pragma unroll
				for (int c = 0; c < COLUMNS; c++) of[g].sum[c] += w * up(value[u][c / N].v[c % N]);
			}
		}
	}
	start_next();
	const bool whole = from_split == to_split;
#pragma unroll
	for (int g = 0; g < GROUP; g++) {
		if (g >= group) break;
		for (u32 l = lanes; l < 32; l *= 2) of[g].join(l);
		if (t % 32 == 0) tops[warp] = of[g].top;
		__syncthreads();
		of[g].raise(warp_top(tops[t % WARPS]));
		if (t % 32 == 0) totals[warp] = of[g].total;
		if (t % 32 < lanes)
#pragma unroll
			for (int c = 0; c < COLUMNS; c++) {
				const u32 at = (lane + c / N * lanes) * N + c % N;
				if (at < d) part[warp][at] = of[g].sum[c];
			}
		__syncthreads();
		for (u32 at = t; at < d; at += THREADS) {
			A v = 0, total = 0;
#pragma unroll
			for (int w = 0; w < WARPS; w++) v += part[w][at], total += totals[w];
			const u64 head = first_head + g, line = head * a.splits + split;
			if (whole) {
				((T *)a.o)[head * d + at] = down<T>(v / total);
			} else {
				((A *)a.parts)[line * d + at] = v;
				if (at == 0) ((A *)a.sums)[line * 2] = of[g].top, ((A *)a.sums)[line * 2 + 1] = total;
			}
		}
	}
	if (whole) return;
	__threadfence();
	__syncthreads();
	u32 *const arrived = (u32 *)a.arrived + b * a.key_heads + kept;
	if (t == 0) before = atomicAdd(arrived, 1u);
	__syncthreads();
	if (before + 1 < (to_split - from_split + 1) * a.chunks) return;
	if (t == 0) *arrived = 0; // for the next call
	__threadfence();
	volatile const A *const sums = (volatile const A *)a.sums, *const all = (volatile const A *)a.parts;
	for (u32 x = t; x < a.group * d; x += THREADS) {
		const u64 head = (u64)b * a.heads + kept * a.group + x / d, line = head * a.splits;
		Online<A, 1> of = {none, 0, {0}};
#pragma unroll 4
		for (u32 i = from_split; i <= to_split; i++) {
			of.raise(sums[(line + i) * 2]);
			const A w = exp_(sums[(line + i) * 2] - of.top);
			of.total += w * sums[(line + i) * 2 + 1];
			of.sum[0] += w * all[(line + i) * d + x % d];
		}
		((T *)a.o)[head * d + x % d] = down<T>(of.sum[0] / of.total);
	}
}

#define EXPORT(name, T)                                                                                    \
	extern "C" __global__ void write_rows_##name(const WriteRows a) { write_rows<T>(a); }                   \
	extern "C" __global__ void __launch_bounds__(THREADS) attend_last_##name(const AttendLast a) { attend_last<T>(a); }
EACH_FLOAT(EXPORT)
