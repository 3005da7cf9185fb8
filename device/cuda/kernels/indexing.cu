// Gather and ScatterAdd. ScatterAdd sorts the terms by their destination, with a stable sort. Then
// each thread adds a chunk of consecutive terms. So the order of additions does not depend on
// timing.

struct Gather {
	u64 dst, src, index;
	u64 rows, m, n, inner;
	i32 each, wide; // each: whether every element has its own index; wide: whether rows are aligned to 16 bytes
};

template <class T> __device__ inline T not_a_number() { return narrow<T>(__longlong_as_double(0x7ff8000000000000ll)); }

// gather covers the result with a grid of blocks. Columns are along x.
template <class T> __device__ inline void gather(const Gather &a) {
	const int N = Pack<T>::N;
	const u64 *index = (const u64 *)a.index;
	for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * (u64)blockDim.y) {
		T *dst = (T *)a.dst + row * a.inner;
		const u64 o = row / a.m;
		if (a.each) {
			for (u64 col = global_thread(); col < a.inner; col += global_threads()) {
				const u64 v = index[row * a.inner + col];
				dst[col] = v < a.n ? ((const T *)a.src)[(o * a.n + v) * a.inner + col] : not_a_number<T>();
			}
			continue;
		}
		const u64 v = index[row - o * a.m];
		const T *src = (const T *)a.src + (o * a.n + v) * a.inner;
		if (a.wide && v < a.n) {
			for (u64 col = global_thread() * N; col < a.inner; col += global_threads() * N) {
				Pack<T> p;
				p.load(src + col);
				p.store(dst + col);
			}
		} else {
			for (u64 col = global_thread(); col < a.inner; col += global_threads()) dst[col] = v < a.n ? src[col] : not_a_number<T>();
		}
	}
}

// A term is a row of src that one index item selects, or an element of src if every element has its
// own index. Its key is its destination, a row or an element of dst. Terms with an invalid index
// have the key keys.
struct Scatter {
	u64 dst, src, index;
	Accum acc;
	u64 items, keys;
	u64 m, n, inner, each;
	i64 skip;
	u64 columns, width; // elements of a term, and of a row: columns are of all outer rows
	u64 wide;           // rows are aligned to 16 bytes
	// The sort: one digit of the key at a time, the lowest first.
	u64 from, to; // the items' order before, 0 for that in index, and after
	u64 table, blocks, shift;
	// The sum adds chunks of the sorted items.
	u64 part, chunks;
};

__device__ inline u64 key_of(const Scatter &a, u64 item) {
	const u64 v = ((const u64 *)a.index)[item];
	if (v >= a.n || v == (u64)a.skip) return a.keys;
	return a.each ? (item / (a.m * a.inner) * a.n + v) * a.inner + item % a.inner : v;
}

#define DIGITS 16     // of 4 bits
#define SORT_THREADS 256
#define SORT_ITEMS 8  // of a thread

// count_digits counts each thread's items by digit.
__device__ inline void count_digits(const Scatter &a, u32 (*count)[SORT_THREADS], u64 *item, u32 *digit) {
	for (int d = 0; d < DIGITS; d++) count[d][threadIdx.x] = 0;
	const u64 first = (blockIdx.x * (u64)SORT_THREADS + threadIdx.x) * SORT_ITEMS;
	for (int j = 0; j < SORT_ITEMS; j++) {
		if (first + j >= a.items) break;
		item[j] = a.from ? ((const u64 *)a.from)[first + j] : first + j;
		digit[j] = key_of(a, item[j]) >> a.shift & (DIGITS - 1);
		count[digit[j]][threadIdx.x]++;
	}
	__syncthreads();
}

// sort_count writes the number of the block's items with each digit to table[digit][block].
extern "C" __global__ void sort_count(const Scatter a) {
	__shared__ u32 count[DIGITS][SORT_THREADS];
	u64 item[SORT_ITEMS];
	u32 digit[SORT_ITEMS];
	count_digits(a, count, item, digit);
	if (threadIdx.x < DIGITS) {
		u64 n = 0;
		for (int t = 0; t < SORT_THREADS; t++) n += count[threadIdx.x][t];
		((u64 *)a.table)[threadIdx.x * a.blocks + blockIdx.x] = n;
	}
}

// sort_place moves the items behind all items with lower digits, and behind earlier items with the
// same digit.
extern "C" __global__ void sort_place(const Scatter a) {
	__shared__ u32 count[DIGITS][SORT_THREADS];
	__shared__ u64 before[SORT_THREADS], all[SORT_THREADS], base[DIGITS];
	u64 item[SORT_ITEMS];
	u32 digit[SORT_ITEMS];
	count_digits(a, count, item, digit);
	// 16 threads add a digit's row of the table: the sum of the blocks before this one, and the sum
	// of all.
	const int d = threadIdx.x / 16, lane = threadIdx.x % 16;
	u64 mine = 0, total = 0;
	for (u64 b = lane; b < a.blocks; b += 16) {
		const u64 n = ((const u64 *)a.table)[d * a.blocks + b];
		total += n;
		if (b < blockIdx.x) mine += n;
	}
	before[threadIdx.x] = mine;
	all[threadIdx.x] = total;
	__syncthreads();
	if (threadIdx.x == 0) {
		u64 at = 0;
		for (int d = 0; d < DIGITS; d++) {
			base[d] = at;
			for (int i = 0; i < 16; i++) {
				base[d] += before[d * 16 + i];
				at += all[d * 16 + i];
			}
		}
	}
	if (threadIdx.x < DIGITS) { // each thread's items follow those of the threads before it
		u32 at = 0;
		for (int t = 0; t < SORT_THREADS; t++) {
			const u32 n = count[threadIdx.x][t];
			count[threadIdx.x][t] = at;
			at += n;
		}
	}
	__syncthreads();
	const u64 first = (blockIdx.x * (u64)SORT_THREADS + threadIdx.x) * SORT_ITEMS;
	for (int j = 0; j < SORT_ITEMS; j++) {
		if (first + j >= a.items) break;
		((u64 *)a.to)[base[digit[j]] + count[digit[j]][threadIdx.x]++] = item[j];
	}
}

// CHUNK is the number of sorted items that a thread adds.
#define CHUNK 32

__device__ inline u64 sorted_key(const Scatter &a, u64 i) { return key_of(a, ((const u64 *)a.to)[i]); }

// The location of N columns from col on: in a row of dst, or in a part.
template <class T, int N> __device__ inline void add_to(const Scatter &a, u64 key, u64 col, const double *v) {
	if (key >= a.keys) return;
	T *dst = (T *)a.dst + (col / a.width * a.n + key) * a.width + col % a.width;
#pragma unroll
	for (int j = 0; j < N; j++) accumulate(dst + j, a.acc, v[j]);
}

template <int N> __device__ inline double *part_of(const Scatter &a, u64 chunk, int which, u64 col) {
	return (double *)a.part + (2 * chunk + which) * a.columns + col;
}

// Row is a thread's N columns of a term: a pack, or one.
template <class T, int N> struct Row {
	Pack<T> p;
	__device__ void load(const T *at) { p.load(at); }
	__device__ double at(int j) const { return up(p.v[j]); }
};
template <class T> struct Row<T, 1> {
	T e;
	__device__ void load(const T *at) { e = *at; }
	__device__ double at(int) const { return up(e); }
};

// add_runs adds the terms of one key in a chunk. If these are all terms of the key, the sum is
// added to dst. Otherwise it is stored in the chunk's first part if the key starts in an earlier
// chunk, or in its second part if the key continues in the next chunk.
template <class T, int N> __device__ inline void add_runs(const Scatter &a) {
	const int ahead = 4;
	const T *src = (const T *)a.src;
	for (u64 chunk = blockIdx.y * (u64)blockDim.y + threadIdx.y; chunk < a.chunks; chunk += gridDim.y * (u64)blockDim.y) {
		const u64 lo = chunk * CHUNK, hi = min(lo + CHUNK, a.items);
		for (u64 col = global_thread() * N; col < a.columns; col += global_threads() * N) {
			const T *terms = src + col / a.width * a.m * a.width + col % a.width;
			u64 key = sorted_key(a, lo);
			bool began = lo > 0 && sorted_key(a, lo - 1) == key;
			double v[N] = {};
			for (u64 i = lo; i < hi; i += ahead) {
				Row<T, N> r[ahead];
				u64 keys[ahead];
#pragma unroll
				for (int j = 0; j < ahead; j++) {
					if (i + j >= hi) continue;
					const u64 item = ((const u64 *)a.to)[i + j];
					keys[j] = key_of(a, item);
					r[j].load(terms + item * a.width);
				}
#pragma unroll
				for (int j = 0; j < ahead; j++) {
					if (i + j >= hi) continue;
					if (keys[j] != key) {
						if (began) {
							double *part = part_of<N>(a, chunk, 0, col);
							for (int c = 0; c < N; c++) part[c] = v[c];
						} else {
							add_to<T, N>(a, key, col, v);
						}
						key = keys[j];
						began = false;
						for (int c = 0; c < N; c++) v[c] = 0;
					}
					for (int c = 0; c < N; c++) v[c] += r[j].at(c);
				}
			}
			const bool goes_on = hi < a.items && sorted_key(a, hi) == key;
			if (began || goes_on) {
				double *part = part_of<N>(a, chunk, began ? 0 : 1, col);
				for (int c = 0; c < N; c++) part[c] = v[c];
			} else {
				add_to<T, N>(a, key, col, v);
			}
		}
	}
}

// join_runs adds the parts of a key whose terms span several chunks.
template <class T, int N> __device__ inline void join_runs(const Scatter &a) {
	for (u64 chunk = blockIdx.y * (u64)blockDim.y + threadIdx.y; chunk < a.chunks; chunk += gridDim.y * (u64)blockDim.y) {
		const u64 lo = chunk * CHUNK, hi = lo + CHUNK;
		if (hi >= a.items) continue;
		const u64 key = sorted_key(a, hi - 1);
		if (sorted_key(a, hi) != key || lo > 0 && sorted_key(a, lo - 1) == key) continue;
		u64 end = hi, above = a.items; // the first item of a higher key lies above end
		while (end < above) {
			const u64 mid = end + (above - end) / 2;
			if (sorted_key(a, mid) == key) end = mid + 1;
			else above = mid;
		}
		const u64 last = (end - 1) / CHUNK;
		for (u64 col = global_thread() * N; col < a.columns; col += global_threads() * N) {
			double v[N];
			const double *part = part_of<N>(a, chunk, 1, col);
			for (int c = 0; c < N; c++) v[c] = part[c];
#pragma unroll 4
			for (u64 i = chunk + 1; i <= last; i++) {
				part = part_of<N>(a, i, 0, col);
				for (int c = 0; c < N; c++) v[c] += part[c];
			}
			add_to<T, N>(a, key, col, v);
		}
	}
}

struct Labels {
	u64 index, selected, count, labels;
	u64 r, m;
	i64 ignore;
	u64 wide; // whether count is of float64
};

#define SELECT_THREADS 1024
#define NO_LABEL ((i64)(1ull << 63))

// select_labels runs in one block. Each thread takes as many neighbouring labels.
extern "C" __global__ void __launch_bounds__(SELECT_THREADS) select_labels(const Labels a) {
	__shared__ u32 before[SELECT_THREADS];
	__shared__ u64 all;
	const i64 *labels = (const i64 *)a.labels;
	i64 *index = (i64 *)a.index, *selected = (i64 *)a.selected;
	const u64 each = (a.m + SELECT_THREADS - 1) / SELECT_THREADS;
	const u64 first = min(threadIdx.x * each, a.m), last = min(first + each, a.m);
	u32 n = 0;
	for (u64 i = first; i < last; i++) n += labels[i] != a.ignore;
	before[threadIdx.x] = n;
	__syncthreads();
	if (threadIdx.x == 0) {
		u64 sum = 0;
		for (int t = 0; t < SELECT_THREADS; t++) {
			const u32 v = before[t];
			before[t] = sum;
			sum += v;
		}
		all = sum;
		const u64 some = sum > 0 ? sum : 1;
		if (a.wide) {
			((double *)a.count)[0] = sum;
			((double *)a.count)[1] = some;
		} else {
			((float *)a.count)[0] = sum;
			((float *)a.count)[1] = some;
		}
	}
	__syncthreads();
	u64 to = before[threadIdx.x];
	for (u64 i = first; i < last; i++) {
		if (labels[i] == a.ignore) continue;
		if (to < a.r) {
			index[to] = i;
			selected[to] = to == 0 && all > a.r ? -1 : labels[i];
		}
		to++;
	}
	for (u64 i = all + threadIdx.x; i < a.r; i += SELECT_THREADS) {
		index[i] = 0;
		selected[i] = NO_LABEL;
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void gather_##name(const Gather a) { gather<T>(a); } \
	extern "C" __global__ void add_runs_##name(const Scatter a) { \
		if (a.wide) add_runs<T, Pack<T>::N>(a); \
		else add_runs<T, 1>(a); \
	} \
	extern "C" __global__ void join_runs_##name(const Scatter a) { \
		if (a.wide) join_runs<T, Pack<T>::N>(a); \
		else join_runs<T, 1>(a); \
	}
EACH_FLOAT(EXPORT)
