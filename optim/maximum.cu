// largest_magnitude makes each element of most the largest |x| that its block has seen.
template <class T> __device__ void largest_magnitude(T *most, const T *x, i64 n) {
	typedef typename Arith<T>::type A;
	__shared__ A seen[256]; // by thread
	A m = 0;
	for (i64 i = global_thread(); i < n; i += global_threads()) {
		const A v = up(x[i]) < 0 ? -up(x[i]) : up(x[i]);
		if (v > m || v != v) m = v; // a NaN stays: nothing is above it
	}
	seen[threadIdx.x] = m;
	for (int half = blockDim.x / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x >= half) continue;
		const A v = seen[threadIdx.x + half];
		if (v > seen[threadIdx.x] || v != v) seen[threadIdx.x] = v;
	}
	if (threadIdx.x == 0) most[blockIdx.x] = down<T>(seen[0]);
}
