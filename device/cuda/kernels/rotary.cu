// Rotary position embeddings, with one thread per element.

struct Rotate {
	u64 dst, x, cos, sin, n;
	u64 rows, heads, size, pairs, turned; // x is [.. rows heads size]; the first turned heads are rotated
	Accum acc;
	i32 interleaved, inverse;
};

template <class T> __device__ inline void rotate(const Rotate &a) {
	typedef typename Arith<T>::type A;
	const T *x = (const T *)a.x;
	for (u64 at = global_thread(); at < a.n; at += global_threads()) {
		const u64 c = at % a.size, head = at / a.size % a.heads, row = at / a.size / a.heads % a.rows;
		A v = up(x[at]);
		if (head < a.turned && c < 2 * a.pairs) {
			const u64 pair = a.interleaved ? c / 2 : c % a.pairs, apart = a.interleaved ? 1 : a.pairs;
			const bool second = a.interleaved ? c % 2 : c >= a.pairs;
			const A other = up(second ? x[at - apart] : x[at + apart]), cos = ((const A *)a.cos)[row * a.pairs + pair];
			const A sin = ((const A *)a.sin)[row * a.pairs + pair];
			v = v * cos + other * ((second != (a.inverse != 0)) ? sin : -sin);
		}
		accumulate((T *)a.dst + at, a.acc, v);
	}
}

#define EXPORT(name, T) \
	extern "C" __global__ void rotate_##name(const Rotate a) { rotate<T>(a); }
EACH_FLOAT(EXPORT)
