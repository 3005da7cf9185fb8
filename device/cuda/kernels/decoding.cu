// Attention of one query for each row to a cache of keys and values, and writing to such a cache.

struct WriteRows {
	u64 dst, src, first;
	u64 s, t, n, width; // dst is [b s n], src [b t n]; width is the number of elements, or of packs of 16 bytes, in a row
	i32 wide;
};

// write_rows has a thread for each element or pack of src: a row along x, rows along y.
template <class T> __device__ inline void write_rows(const WriteRows &a) {
	const u64 row = blockIdx.y, b = row / a.t;
	const i64 at = ((const i64 *)a.first)[b] + (i64)(row % a.t);
	if (at < 0 || at >= (i64)a.s) return;
	const u64 from = row * a.width, to = (b * a.s + at) * a.width;
	for (u64 i = global_thread(); i < a.width; i += global_threads()) {
		if (a.wide) ((uint4 *)a.dst)[to + i] = ((const uint4 *)a.src)[from + i];
		else ((T *)a.dst)[to + i] = ((const T *)a.src)[from + i];
	}
}

// The keys of a row are divided among blocks, SPLIT positions for each. With one block for each row and head of keys,
// it writes the result; otherwise all blocks write their parts, which attend_merge adds up.
const int SPLIT = 256, GROUP = 8, MAX_D = 256, THREADS = 128;

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

// The block is (head of keys and chunk of its queries, row, split). Its threads first compute a product each, for a position and all of the
// group's queries, and then a column each of the result.
template <class T> __device__ inline void attend_last(const AttendLast &a) {
	typedef typename Arith<T>::type A;
	const A none = -__longlong_as_double(0x7ff0000000000000ll); // -∞
	__shared__ A query[GROUP][MAX_D], weight[GROUP][SPLIT], tops[GROUP], totals[GROUP];
	const u64 d = a.d, all = a.heads / a.key_heads, kept = blockIdx.x / a.chunks, skipped = blockIdx.x % a.chunks * GROUP;
	const u64 b = blockIdx.y, split = blockIdx.z, group = all - skipped < GROUP ? all - skipped : GROUP;
	const u64 first_head = b * a.heads + kept * all + skipped, end = ((const i64 *)a.last)[b] + 1;
	const u64 start = a.window && end > a.window ? end - a.window : 0;
	const u64 lo = split * SPLIT > start ? split * SPLIT : start, hi = (split + 1) * SPLIT < end ? (split + 1) * SPLIT : end;
	const int n = hi > lo ? (int)(hi - lo) : 0;
	const u64 step = a.key_heads * d;
	T *keys = (T *)a.keys + ((b * a.s + lo) * a.key_heads + kept) * d;
	T *values = (T *)a.values + ((b * a.s + lo) * a.key_heads + kept) * d;
	if (n && hi == end) { // this split has the last position, which no other one reads
		for (u64 i = threadIdx.x; i < d; i += THREADS) {
			const u64 from = (b * a.key_heads + kept) * d + i, to = (u64)(n - 1) * step + i;
			keys[to] = ((const T *)a.k)[from], values[to] = ((const T *)a.v)[from];
		}
	}
	for (u64 i = threadIdx.x; i < group * d; i += THREADS) query[i / d][i % d] = up(((const T *)a.q)[first_head * d + i]) * (A)a.scale;
	__syncthreads();
	const int N = Pack<T>::N;
	const bool wide = d % N == 0 && ((u64)keys | step * sizeof(T)) % 16 == 0;
	for (int i = threadIdx.x; i < n; i += THREADS) {
		A sum[GROUP];
#pragma unroll
		for (int g = 0; g < GROUP; g++) sum[g] = 0;
		const T *key = keys + i * step;
		for (u64 at = 0; at < d; at += N) {
			Pack<T> p;
			if (wide) p.load(key + at);
#pragma unroll
			for (int j = 0; j < N; j++) {
				if (at + j >= d) break;
				const A v = up(wide ? p.v[j] : key[at + j]);
#pragma unroll
				for (int g = 0; g < GROUP; g++)
					if (g < group) sum[g] += v * query[g][at + j];
			}
		}
#pragma unroll
		for (int g = 0; g < GROUP; g++)
			if (g < group) weight[g][i] = sum[g];
	}
	__syncthreads();
	for (u64 g = threadIdx.x / 32; g < group; g += THREADS / 32) {
		A top = none, total = 0;
		for (int i = threadIdx.x % 32; i < n; i += 32) top = weight[g][i] > top ? weight[g][i] : top;
		for (int lane = 16; lane > 0; lane /= 2) {
			const A other = __shfl_xor_sync(0xffffffffu, top, lane);
			top = other > top ? other : top;
		}
		for (int i = threadIdx.x % 32; i < n; i += 32) total += weight[g][i] = exp_(weight[g][i] - top);
		total = (A)warp_sum(total);
		if (threadIdx.x % 32 == 0) tops[g] = top, totals[g] = total;
	}
	__syncthreads();
	for (u64 c = threadIdx.x; c < group * d; c += THREADS) {
		const u64 g = c / d, at = c % d;
		A sum = 0;
#pragma unroll 8
		for (int i = 0; i < n; i++) sum += weight[g][i] * up(values[i * step + at]);
		if (a.splits == 1) ((T *)a.o)[first_head * d + c] = down<T>(sum / totals[g]);
		else ((A *)a.parts)[((first_head + g) * a.splits + split) * d + at] = sum;
	}
	if (a.splits > 1 && threadIdx.x < group) {
		A *const sums = (A *)a.sums + ((first_head + threadIdx.x) * a.splits + split) * 2;
		sums[0] = tops[threadIdx.x], sums[1] = totals[threadIdx.x];
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
