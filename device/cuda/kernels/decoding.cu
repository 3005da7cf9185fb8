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

// The keys of a row are divided among blocks, SPLIT positions for each. With one block for each row and head of keys,
// it writes the result; otherwise all blocks write their parts, which attend_merge adds up.
const int SPLIT = 64, GROUP = 8, MAX_D = 256, THREADS = 128, AHEAD = 4; // AHEAD: loads of a thread in flight

struct AttendLast {
	u64 o, q, k, v, keys, values, last;
	u64 parts, sums; // [b h splits d] and, for each of these lines, its largest product and the sum of exponentials
	u64 s, heads, key_heads, d, splits;
	u64 chunks; // of at most GROUP heads of queries, for a head of keys
	u64 window; // 0 for none
	double scale;
};

__device__ inline float exp_(float v) { return expf(v); }
__device__ inline double exp_(double v) { return exp(v); }

// lanes_for returns the smallest power of 2 from n on, at most most.
__device__ inline u32 lanes_for(u32 n, u32 most) {
	u32 l = 1;
	while (l < n && l < most) l *= 2;
	return l;
}

// load_at loads the pack that starts at element at of a row of d elements. Elements behind the row are 0.
template <class T> __device__ inline Pack<T> load_at(const T *row, u64 at, u64 d, bool wide) {
	Pack<T> p;
	if (wide) {
		p.load(row + at);
	} else {
#pragma unroll
		for (int j = 0; j < Pack<T>::N; j++) p.v[j] = at + j < d ? row[at + j] : down<T>(0);
	}
	return p;
}

// The block is (head of keys and chunk of its queries, row, split). Neighbouring threads read a key together, and then
// a value. The queries of the chunk are in shared memory.
template <class T> __device__ inline void attend_last(const AttendLast &a) {
	typedef typename Arith<T>::type A;
	const int N = Pack<T>::N;
	const A none = -__longlong_as_double(0x7ff0000000000000ll); // -∞
	__shared__ A query[GROUP][MAX_D + N], weight[GROUP][SPLIT], tops[GROUP], totals[GROUP], part[THREADS * N];
	const u64 d = a.d, all = a.heads / a.key_heads, kept = blockIdx.x / a.chunks, skipped = blockIdx.x % a.chunks * GROUP;
	const u64 b = blockIdx.y, split = blockIdx.z, group = all - skipped < GROUP ? all - skipped : GROUP;
	const i64 last = ((const i64 *)a.last)[b];
	const u64 first_head = b * a.heads + kept * all + skipped, end = last >= 0 && last < (i64)a.s ? last + 1 : 0;
	const u64 start = a.window && end > a.window ? end - a.window : 0;
	const u64 lo = split * SPLIT > start ? split * SPLIT : start, hi = (split + 1) * SPLIT < end ? (split + 1) * SPLIT : end;
	const u32 n = hi > lo ? hi - lo : 0, t = threadIdx.x;
	const u64 step = a.key_heads * d, row = ((b * a.s + lo) * a.key_heads + kept) * d;
	T *const keys = (T *)a.keys + row, *const values = (T *)a.values + row;
	if (n && hi == end) { // this split has the last position, which no other one reads
		for (u64 i = t; i < d; i += THREADS) {
			const u64 from = (b * a.key_heads + kept) * d + i, to = (u64)(n - 1) * step + i;
			keys[to] = ((const T *)a.k)[from], values[to] = ((const T *)a.v)[from];
		}
	}
	for (u64 i = t; i < group * (d + N); i += THREADS) {
		const u64 g = i / (d + N), at = i % (d + N);
		query[g][at] = at < d ? up(((const T *)a.q)[(first_head + g) * d + at]) * (A)a.scale : (A)0;
	}
	__syncthreads();
	const bool wide = d % N == 0 && (a.keys | a.values) % 16 == 0;
	const u32 packs = (d + N - 1) / N;

	// The products: `lanes` threads for a key, AHEAD keys at a time.
	const u32 lanes = lanes_for(packs, 32), lane = t % lanes, apart = THREADS / lanes;
	for (u32 base = 0; base < n; base += AHEAD * apart) {
		A sum[AHEAD][GROUP];
#pragma unroll
		for (int u = 0; u < AHEAD; u++)
#pragma unroll
			for (int g = 0; g < GROUP; g++) sum[u][g] = 0;
		for (u32 p = lane; p < packs; p += lanes) {
			Pack<T> key[AHEAD];
#pragma unroll
			for (int u = 0; u < AHEAD; u++) {
				const u32 i = base + u * apart + t / lanes;
				key[u] = load_at(keys + (i < n ? i : 0) * step, (u64)p * N, d, wide);
			}
#pragma unroll
			for (int g = 0; g < GROUP; g++) {
				if (g >= group) break;
#pragma unroll
				for (int j = 0; j < N; j++) {
					const A q = query[g][p * N + j];
#pragma unroll
					for (int u = 0; u < AHEAD; u++) sum[u][g] += up(key[u].v[j]) * q;
				}
			}
		}
#pragma unroll
		for (int u = 0; u < AHEAD; u++) {
			const u32 i = base + u * apart + t / lanes;
#pragma unroll
			for (int g = 0; g < GROUP; g++) {
				if (g >= group) break;
				A v = sum[u][g];
				for (u32 l = lanes / 2; l > 0; l /= 2) v += __shfl_xor_sync(0xffffffffu, v, l);
				if (lane == 0 && i < n) weight[g][i] = v;
			}
		}
	}
	__syncthreads();
	for (u64 g = t / 32; g < group; g += THREADS / 32) {
		A top = none, total = 0;
		for (u32 i = t % 32; i < n; i += 32) top = weight[g][i] > top ? weight[g][i] : top;
		for (int l = 16; l > 0; l /= 2) {
			const A other = __shfl_xor_sync(0xffffffffu, top, l);
			top = other > top ? other : top;
		}
		for (u32 i = t % 32; i < n; i += 32) total += weight[g][i] = exp_(weight[g][i] - top);
		total = (A)warp_sum(total);
		if (t % 32 == 0) tops[g] = top, totals[g] = total;
	}
	__syncthreads();

	// The sums of values: `columns` threads for a value, each with a pack of the result for every query.
	const u32 columns = lanes_for(packs, THREADS), column = t % columns, slots = THREADS / columns;
	A sum[GROUP][N];
#pragma unroll
	for (int g = 0; g < GROUP; g++)
#pragma unroll
		for (int j = 0; j < N; j++) sum[g][j] = 0;
	if (column < packs) {
		for (u32 base = t / columns; base < n; base += AHEAD * slots) {
			Pack<T> value[AHEAD];
#pragma unroll
			for (int u = 0; u < AHEAD; u++) {
				const u32 i = base + u * slots;
				value[u] = load_at(values + (i < n ? i : 0) * step, (u64)column * N, d, wide);
			}
#pragma unroll
			for (int u = 0; u < AHEAD; u++) {
				const u32 i = base + u * slots;
				if (i >= n) break;
#pragma unroll
				for (int g = 0; g < GROUP; g++) {
					if (g >= group) break;
					const A w = weight[g][i];
#pragma unroll
					for (int j = 0; j < N; j++) sum[g][j] += w * up(value[u].v[j]);
				}
			}
		}
	}
#pragma unroll
	for (int g = 0; g < GROUP; g++) {
		if (g >= group) break;
		__syncthreads(); // other threads may still read part
#pragma unroll
		for (int j = 0; j < N; j++) part[t * N + j] = sum[g][j];
		__syncthreads();
		for (u64 at = t; at < d; at += THREADS) {
			A v = 0;
			for (u32 slot = 0; slot < slots; slot++) v += part[(slot * columns + at / N) * N + at % N];
			if (a.splits == 1) ((T *)a.o)[(first_head + g) * d + at] = down<T>(v / totals[g]);
			else ((A *)a.parts)[((first_head + g) * a.splits + split) * d + at] = v;
		}
	}
	if (a.splits > 1 && t < group) {
		A *const sums = (A *)a.sums + ((first_head + t) * a.splits + split) * 2;
		sums[0] = tops[t], sums[1] = totals[t];
	}
}

// attend_merge adds up the parts of a head: a block for each head of each row.
template <class T> __device__ inline void attend_merge(const AttendLast &a) {
	typedef typename Arith<T>::type A;
	const u64 head = blockIdx.x;
	const A *const sums = (const A *)a.sums + head * a.splits * 2;
	A top = sums[0], total = 0;
	for (u64 i = 1; i < a.splits; i++) top = sums[2 * i] > top ? sums[2 * i] : top;
	for (u64 i = 0; i < a.splits; i++)
		if (sums[2 * i + 1] > 0) total += exp_(sums[2 * i] - top) * sums[2 * i + 1];
	for (u64 c = threadIdx.x; c < a.d; c += blockDim.x) {
		A sum = 0;
		for (u64 i = 0; i < a.splits; i++)
			if (sums[2 * i + 1] > 0) sum += exp_(sums[2 * i] - top) * ((const A *)a.parts)[(head * a.splits + i) * a.d + c];
		((T *)a.o)[head * a.d + c] = down<T>(sum / total);
	}
}

#define EXPORT(name, T)                                                                                    \
	extern "C" __global__ void write_rows_##name(const WriteRows a) { write_rows<T>(a); }                   \
	extern "C" __global__ void attend_last_##name(const AttendLast a) { attend_last<T>(a); }                \
	extern "C" __global__ void attend_merge_##name(const AttendLast a) { attend_merge<T>(a); }
EACH_FLOAT(EXPORT)
