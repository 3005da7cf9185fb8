// Rotary position embeddings.

struct Rotate {
	u64 dst, x, cos, sin, n;
	u64 rows, heads, size, pairs, turned; // x is [.. rows heads size]; the first turned heads are rotated
	Accum acc;
	i32 interleaved, inverse;
	i32 wide; // the pairs are whole packs and cover a head, and all arrays are aligned to 16 bytes
};

// Rotates are one or two rotations. The first one has so many blocks, the second one the others.
struct Rotates {
	Rotate parts[2];
	u64 first;
};

// rotate_packs rotates a pack of each half of a head per thread.
template <class T> __device__ inline void rotate_packs(const Rotate &a, u64 thread, u64 threads) {
	typedef typename Arith<T>::type A;
	const int N = Pack<T>::N;
	const u64 packs = a.pairs / N;
	for (u64 i = thread; i < a.n / (2 * N); i += threads) {
		const u64 at = divide(i, packs), c = (i - at * packs) * N, token = divide(at, a.heads), row = token - divide(token, a.rows) * a.rows;
		const T *x = (const T *)a.x + at * a.size + c;
		T *dst = (T *)a.dst + at * a.size + c;
		Pack<T> p, q, dp, dq;
		Packs<A, N> cos, sin;
		p.load(x);
		q.load(x + a.pairs);
		if (a.acc.beta != 0) {
			dp.load(dst);
			dq.load(dst + a.pairs);
		}
		const bool turned = at - token * a.heads < a.turned;
		if (turned) {
			cos.load((const A *)a.cos + row * a.pairs + c);
			sin.load((const A *)a.sin + row * a.pairs + c);
		}
#pragma unroll
		for (int j = 0; j < N; j++) {
			A u = up(p.v[j]), v = up(q.v[j]);
			if (turned) {
				const A s = a.inverse ? -sin[j] : sin[j], first = u * cos[j] - v * s;
				v = v * cos[j] + u * s;
				u = first;
			}
			accumulate(&dp.v[j], a.acc, u);
			accumulate(&dq.v[j], a.acc, v);
		}
		dp.store(dst);
		dq.store(dst + a.pairs);
	}
}

// rotate rotates an element per thread, unless it can rotate packs.
template <class T> __device__ inline void rotate(const Rotates &all) {
	const bool second = blockIdx.x >= all.first;
	const Rotate &a = all.parts[second];
	const u64 thread = global_thread() - (second ? all.first * blockDim.x : 0);
	const u64 threads = (second ? gridDim.x - all.first : all.first) * blockDim.x;
	if (a.wide) return rotate_packs<T>(a, thread, threads);
	typedef typename Arith<T>::type A;
	const T *x = (const T *)a.x;
	for (u64 at = thread; at < a.n; at += threads) {
		const u64 c = at % a.size, head = at / a.size % a.heads, row = at / a.size / a.heads % a.rows;
		A v = up(x[at]);
		if (head < a.turned && c < 2 * a.pairs) {
			const u64 pair = a.interleaved ? c / 2 : c % a.pairs, apart = a.interleaved ? 1 : a.pairs;
			const bool upper = a.interleaved ? c % 2 : c >= a.pairs;
			const A other = up(upper ? x[at - apart] : x[at + apart]), cos = ((const A *)a.cos)[row * a.pairs + pair];
			const A sin = ((const A *)a.sin)[row * a.pairs + pair];
			v = v * cos + other * ((upper != (a.inverse != 0)) ? sin : -sin);
		}
		accumulate((T *)a.dst + at, a.acc, v);
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void rotate_##name(const Rotates a) { await_earlier(); rotate<T>(a); }
EACH_FLOAT(EXPORT)
