// Scaled dot-product attention in tiles, after Dao, "FlashAttention-2" (2023). This part is common
// to attention_plain.cu and attention_mma.cu. A block computes rows of queries, or of keys, of one
// head, and iterates over tiles of the other side, so every sum is added in one order.

// Heads has the fields of kernels.Heads. Strides are in elements.
struct Heads { u64 data; i64 batch, head, row; };

struct Attend {
	Heads q, k, v, o; // o: the result, or the gradient with respect to it
	Heads dst, dst2; // the gradients: dq, or dk and dv
	u64 lse, delta, mask, starts;
	i64 mask_batch, mask_head, mask_row, mask_col; // strides in elements
	i64 heads, key_heads, t, s, d, window; // window: 0 for none
	Accum acc, acc2;
	double scale;
	i32 causal, mask_kind;
};

enum { NO_MASK, ALLOWED, ADDED };

// Place is the work of a block: rows of one head in one batch, from first on.
struct Place { i64 batch, head, first; };

// place returns the block's Place. Each head has the given number of rows, and a block computes
// each of them. With last_first the last rows of a head begin first, because they take the longest
// for causal queries.
__device__ inline Place place(i64 heads, i64 rows, int each, bool last_first) {
	const i64 blocks = (rows + each - 1) / each, at = divide(blockIdx.x, blocks), batch = divide(at, heads);
	i64 block = blockIdx.x - at * blocks;
	if (last_first) block = blocks - 1 - block;
	Place p = {batch, at - batch * heads, block * each};
	return p;
}

// head_of returns the address of the first row of a head.
template <class T> __device__ inline T *head_of(const Heads &h, i64 batch, i64 head) {
	return (T *)h.data + batch * h.batch + head * h.head;
}

__device__ inline i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

// start returns the first key of query i's document.
__device__ inline i64 start(const Attend &a, i64 batch, i64 i) { return ((const i64 *)a.starts)[batch * a.t + i]; }

// first_key returns the first key to which query i may attend. A number below 0 means all from the first on. It never
// decreases from one query to the next.
__device__ inline i64 first_key(const Attend &a, i64 batch, i64 i) {
	const i64 first = a.window ? i - a.window + 1 : 0;
	if (!a.starts || i >= a.t) return first;
	const i64 s = start(a, batch, i);
	return s > first ? s : first;
}

// first_tile returns the first tile of keys of which a query from i on may attend to one. tile is a tile's size.
__device__ inline i64 first_tile(const Attend &a, i64 batch, i64 i, int tile) {
	const i64 first = first_key(a, batch, i);
	return first > 0 ? first / tile * tile : 0;
}

// end_of returns the number of queries up to the last one that may attend to a key before `before`.
__device__ inline i64 end_of(const Attend &a, i64 batch, i64 before) {
	i64 end = a.window ? smaller(a.t, before - 1 + a.window) : a.t;
	if (!a.starts) return end;
	for (i64 low = smaller(before, end); low < end;) { // the queries before `before` start before it
		const i64 middle = low + (end - low) / 2;
		if (start(a, batch, middle) < before) low = middle + 1;
		else end = middle;
	}
	return end;
}

// least returns -Inf.
__device__ inline double least() { return __longlong_as_double(0xfff0000000000000ll); }

// masked applies the mask to s, the score of query i and key j. The head's mask begins at element
// mask. The result is -Inf if the query may not attend to the key, or if i or j is out of range.
// added is a factor of a mask that is added.
template <class T, class A> __device__ inline A masked(const Attend &a, i64 batch, i64 mask, i64 i, i64 j, A s, A added) {
	if (i >= a.t || j >= a.s || (a.causal && j > i) || j < first_key(a, batch, i)) return (A)least();
	if (a.mask_kind == NO_MASK) return s;
	const i64 at = mask + i * a.mask_row + j * a.mask_col;
	if (a.mask_kind == ADDED) return s + up(((const T *)a.mask)[at]) * added;
	return ((const u8 *)a.mask)[at] ? s : (A)least();
}
