// Linears of one row of 16-bit elements, as when text is decoded: their time is that of reading the weights. One or more
// warps compute an element of a result, and read a row of the weights in packs of 16 bytes. The first packs are loaded
// while the kernel in front still runs.

struct Product { u64 y, w, bias, n; }; // y [n], w [n k], bias [n] or 0

struct OneRow {
	u64 x; // [k]
	Product products[3];
	u32 k;     // whole packs
	u32 warps; // 1, 2 or 4 warps share a row of weights
};

const int BLOCK_WARPS = 4, AHEAD = 8; // AHEAD: loads of a thread in flight

template <class T, int WARPS> __device__ inline void one_row(const OneRow &a) {
	const int N = Pack<T>::N, STEP = 32 * WARPS * N;
	__shared__ float parts[BLOCK_WARPS];
	const u32 lane = threadIdx.x % (32 * WARPS), warp = threadIdx.x / 32;
	u64 column = blockIdx.x * (u64)(BLOCK_WARPS / WARPS) + threadIdx.x / (32 * WARPS);
	Product p = a.products[0];
	if (column >= p.n) {
		column -= p.n;
		p = a.products[1];
		if (column >= p.n) {
			column -= p.n;
			p = a.products[2];
		}
	}
	const u32 k = column < p.n ? a.k : 0;
	const T *const w = (const T *)p.w + column * a.k, *const x = (const T *)a.x;
	Pack<T> q[AHEAD];
#pragma unroll
	for (int i = 0; i < AHEAD; i++)
		if (lane * N + i * STEP < k) q[i].load(w + lane * N + i * STEP);
	await_earlier();
	float sums[4] = {};
	for (u32 start = lane * N;;) {
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			if (start + i * STEP >= k) continue;
			Pack<T> of;
			of.load(x + start + i * STEP);
#pragma unroll
			for (int j = 0; j < N; j++) sums[j % 4] += up(q[i].v[j]) * up(of.v[j]);
		}
		start += AHEAD * STEP;
		if (start >= k) break;
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (start + i * STEP < k) q[i].load(w + start + i * STEP);
	}
	start_next();
	float sum = (float)warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
	if (WARPS > 1) {
		parts[warp] = sum;
		__syncthreads();
		for (int i = 1; i < WARPS; i++) sum += parts[(warp + i) % BLOCK_WARPS];
	}
	if (lane != 0 || k == 0) return;
	if (p.bias) sum += up(((const T *)p.bias)[column]);
	((T *)p.y)[column] = down<T>(sum);
}

#define EXPORT(name, T)                                               \
	extern "C" __global__ void one_row_##name(const OneRow a) {        \
		if (a.warps == 1) one_row<T, 1>(a);                             \
		else if (a.warps == 2) one_row<T, 2>(a);                        \
		else one_row<T, 4>(a);                                          \
	}
EACH_16_BIT(EXPORT)
