// Linear of one row of 16-bit elements, as when text is decoded: its time is that of reading the weights. A warp computes
// an element of the result, and reads a row of the weights in packs of 16 bytes.

struct OneRow {
	u64 y, x, w, bias; // y [n], x [k], w [n k], bias [n] or 0; k is whole packs
	u64 n, k;
};

template <class T> __device__ inline void one_row(const OneRow &a) {
	const int N = Pack<T>::N, AHEAD = 8; // AHEAD: loads of a thread in flight
	const u64 lane = threadIdx.x % 32, column = global_thread() / 32;
	if (column >= a.n) return;
	const T *const w = (const T *)a.w + column * a.k, *const x = (const T *)a.x;
	float sum = 0;
	for (u64 start = lane * N; start < a.k; start += AHEAD * 32 * N) {
		Pack<T> p[AHEAD];
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (start + i * 32 * N < a.k) p[i].load(w + start + i * 32 * N);
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			if (start + i * 32 * N >= a.k) continue;
			Pack<T> q;
			q.load(x + start + i * 32 * N);
#pragma unroll
			for (int j = 0; j < N; j++) sum += up(p[i].v[j]) * up(q.v[j]);
		}
	}
	sum = (float)warp_sum(sum);
	if (lane != 0) return;
	if (a.bias) sum += up(((const T *)a.bias)[column]);
	((T *)a.y)[column] = down<T>(sum);
}

#define EXPORT(name, T) \
	extern "C" __global__ void one_row_##name(const OneRow a) { one_row<T>(a); }
EACH_16_BIT(EXPORT)
