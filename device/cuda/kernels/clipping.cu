// The norm of several arrays as one vector, and the factor that bounds it. Each block of power_sum writes the
// sum of its share; fold_powers joins these sums. The grid, and so the order of additions, depends only on the
// sizes and the GPU.

struct ClipPart {
	u64 x, n;
	u64 sum; // the address of the sum of the part's first block
	i32 wide, pad;
};

struct Clip {
	u64 norm, total;
	double p, limit, epsilon;
	i32 wide; // whether norm is of float64
	i32 kind; // of the power: see below
	Parts<ClipPart> parts;
};

struct Fold {
	u64 dst, src, n;
	i32 kind, more; // more: whether the result is joined with dst
};

enum { LARGEST, ABSOLUTE, SQUARE, POWER };

// join combines two sums of powers and keeps a NaN.
__device__ inline double join(int kind, double a, double b) {
	if (kind != LARGEST) return a + b;
	return b > a || b != b ? b : a;
}

// block_join joins v over a block of whole warps in a fixed order. Thread 0 gets the result.
__device__ inline double block_join(int kind, double v) {
	__shared__ double part[32];
	for (int lane = 16; lane > 0; lane /= 2) v = join(kind, v, __shfl_xor_sync(0xffffffffu, v, lane));
	if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
	__syncthreads();
	for (int i = 1; i < blockDim.x / 32; i++) v = join(kind, v, part[i]);
	return v;
}

template <int KIND> __device__ inline double power(double v, double p) {
	if (KIND == SQUARE) return v * v;
	v = v < 0 ? -v : v;
	return KIND == POWER ? pow(v, p) : v;
}

template <class T, int KIND> __device__ inline void add_powers(const Clip &all) {
	const Share<ClipPart> mine(all.parts);
	const ClipPart &a = mine.part;
	const T *x = (const T *)a.x;
	const u64 whole = a.wide ? a.n / Pack<T>::N * Pack<T>::N : 0;
	double sum = 0;
	auto add = [&sum, &all](u64, typename Arith<T>::type v) { sum = join(KIND, sum, power<KIND>((double)v, all.p)); };
	each_of(x, mine.thread, mine.threads, whole, true, add);
	each_of(x + whole, mine.thread, mine.threads, a.n - whole, false, add);
	sum = block_join(KIND, sum);
	if (threadIdx.x == 0) ((double *)a.sum)[mine.thread / blockDim.x] = sum;
}

template <class T> __device__ inline void power_sum(const Clip &a) {
	switch (a.kind) {
	case LARGEST: return add_powers<T, LARGEST>(a);
	case ABSOLUTE: return add_powers<T, ABSOLUTE>(a);
	case SQUARE: return add_powers<T, SQUARE>(a);
	default: return add_powers<T, POWER>(a);
	}
}

// fold_powers joins n sums. One block runs it.
extern "C" __global__ void fold_powers(const Fold a) {
	double sum = 0;
#pragma unroll 4
	for (u64 i = threadIdx.x; i < a.n; i += blockDim.x) sum = join(a.kind, sum, ((const double *)a.src)[i]);
	sum = block_join(a.kind, sum);
	if (threadIdx.x == 0) *(double *)a.dst = a.more ? join(a.kind, *(double *)a.dst, sum) : sum;
}

__device__ inline double root_of(const Clip &a) {
	const double total = *(const double *)a.total;
	switch (a.kind) {
	case SQUARE: return sqrt(total);
	case POWER: return pow(total, 1 / a.p);
	}
	return total;
}

template <class T> __device__ inline void scale_to_norm(const Clip &all) {
	const double norm = root_of(all), factor = all.limit / (norm + all.epsilon);
	if (global_thread() == 0) {
		if (all.wide) *(double *)all.norm = norm;
		else *(float *)all.norm = narrow<float>(norm);
	}
	if (factor >= 1 || all.parts.count == 0) return;
	const Share<ClipPart> mine(all.parts);
	const ClipPart &a = mine.part;
	T *x = (T *)a.x;
	typedef typename Arith<T>::type A;
	const A by = (A)factor;
	u64 done = 0;
	if (a.wide) {
		const int N = Pack<T>::N;
		done = a.n / N * N;
#pragma unroll 4
		for (u64 i = mine.thread * N; i < done; i += mine.threads * N) {
			Pack<T> v;
			v.load(x + i);
#pragma unroll
			for (int j = 0; j < N; j++) v.v[j] = down<T>(up(v.v[j]) * by);
			v.store(x + i);
		}
	}
	for (u64 i = done + mine.thread; i < a.n; i += mine.threads) x[i] = down<T>(up(x[i]) * by);
}

#define EXPORT(name, T) \
	extern "C" __global__ void power_sum_##name(const __grid_constant__ Clip a) { power_sum<T>(a); } \
	extern "C" __global__ void scale_to_norm_##name(const __grid_constant__ Clip a) { scale_to_norm<T>(a); }
EACH_FLOAT(EXPORT)
