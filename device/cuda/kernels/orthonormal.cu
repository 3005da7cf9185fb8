// Orthonormalize runs in one block of threads. A thread reads only those elements of a row that it
// wrote itself.

struct Orthonormal { u64 x, spare, rows, n; };

template <class T> __device__ inline double dot(const T *a, const T *b, u64 n) {
	double s = 0;
	for (u64 i = threadIdx.x; i < n; i += blockDim.x) s += (double)a[i] * (double)b[i];
	return block_sum(s);
}

// independent subtracts from row its projections on the rows from first up to it, and scales it to
// norm 1. It returns false, in all threads, if too little of the row is left.
template <class T> __device__ inline bool independent(T *row, const T *first, u64 n) {
	const double whole = dot(row, row, n);
	for (int pass = 0; pass < 2; pass++)
		for (const T *b = first; b < row; b += n) {
			const T d = (T)dot(row, b, n);
			for (u64 i = threadIdx.x; i < n; i += blockDim.x) row[i] -= d * b[i];
		}
	const double left = dot(row, row, n);
	if (!(left > whole * 3.7252902984619140625e-09)) return false; // 2^-28; nor is it if they are NaN or infinite
	const T scale = (T)(1 / sqrt(left));
	for (u64 i = threadIdx.x; i < n; i += blockDim.x) row[i] *= scale;
	return true;
}

template <class T> __device__ inline void orthonormalize(const Orthonormal &a) {
	T *x = (T *)a.x;
	for (u64 r = 0; r < a.rows; r++) {
		T *row = x + r * a.n;
		if (independent(row, x, a.n)) continue;
		const T *spare = (const T *)a.spare + r * a.n;
		for (u64 i = threadIdx.x; i < a.n; i += blockDim.x) row[i] = spare[i];
		if (independent(row, x, a.n)) continue;
		for (u64 i = threadIdx.x; i < a.n; i += blockDim.x) row[i] = 0;
	}
}

extern "C" __global__ void orthonormalize_float32(const Orthonormal a) { orthonormalize<float>(a); }
extern "C" __global__ void orthonormalize_float64(const Orthonormal a) { orthonormalize<double>(a); }
