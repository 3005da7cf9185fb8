// Scaled dot-product attention in tiles, after Dao, "FlashAttention-2" (2023): what
// attention_plain.cu and attention_mma.cu begin with. A block takes rows of queries, or
// of keys, of one head, and goes over tiles of the others, so that every sum is made in
// one order.

// Heads is one of device.Heads: strides in elements.
struct Heads { u64 data; i64 batch, head, row; };

struct Attend {
	Heads q, k, v, o; // o: the result, or the gradient for it
	Heads dst, dst2;  // of the gradients: dq, or dk and dv
	u64 lse, delta, mask;
	i64 mask_batch, mask_head, mask_row, mask_col; // strides in elements
	i64 heads, key_heads, t, s, d;
	Accum acc, acc2;
	double scale;
	i32 causal, mask_kind;
};

enum { NO_MASK, ALLOWED, ADDED };

// Place is what a block works at: rows of a head of a batch.
struct Place { i64 batch, head, first; };

// place is the block's, where each head has so many rows, of which a block takes some.
// Of causal queries the last rows have the most to do, and begin first.
__device__ inline Place place(i64 heads, i64 rows, int each, bool last_first) {
	const i64 blocks = (rows + each - 1) / each, at = divide(blockIdx.x, blocks), batch = divide(at, heads);
	i64 block = blockIdx.x - at * blocks;
	if (last_first) block = blocks - 1 - block;
	Place p = {batch, at - batch * heads, block * each};
	return p;
}

// head_of is the first row of a head.
template <class T> __device__ inline T *head_of(const Heads &h, i64 batch, i64 head) {
	return (T *)h.data + batch * h.batch + head * h.head;
}

__device__ inline i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

// least is -Inf.
__device__ inline double least() { return __longlong_as_double(0xfff0000000000000ll); }

// masked is the score s of query i and key j with the mask of their head, which begins at
// element mask: -Inf where the query may not see the key, or one of them is not there. An
// added mask is multiplied by added.
template <class T, class A> __device__ inline A masked(const Attend &a, i64 mask, i64 i, i64 j, A s, A added) {
	if (i >= a.t || j >= a.s || (a.causal && j > i)) return (A)least();
	if (a.mask_kind == NO_MASK) return s;
	const i64 at = mask + i * a.mask_row + j * a.mask_col;
	if (a.mask_kind == ADDED) return s + up(((const T *)a.mask)[at]) * added;
	return ((const u8 *)a.mask)[at] ? s : (A)least();
}
