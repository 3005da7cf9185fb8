// The all-reduce of few bytes in one step: every rank writes its elements into the
// memory of all, and adds up what it finds in its own.
//
// What is written are lines of 16 bytes: 4 bytes of elements, the call's number, 4
// bytes, the number. An aligned half of a line arrives as one, so a half that
// holds the number holds the elements as well, and nobody waits for anything but
// that. NCCL's protocol LL is the source of this.

// OneShot is the structure one_shot in abi.h.
struct OneShot {
	u64 slots[8]; // each rank's memory, as this one addresses it
	u64 stop;     // a word of the host's: not 0 once nobody is waited for any more
	u64 stopped;  // a word of the GPU's: not 0 once a call ended by that
	u64 src, dst, n;
	double scale; // of the sum
	u32 rank, ranks, call, lines; // lines: of a slot
};

// slot is where, in a rank's memory, the lines of some rank begin. It is written
// again two calls later: its reader is past it then, since the writer has got
// something of the call between, which the reader sent when it was.
__device__ inline uint4 *slot(const OneShot &a, u32 in, u32 of) {
	return (uint4 *)a.slots[in] + ((u64)(a.call & 1) * a.ranks + of) * a.lines;
}

__device__ inline void send(uint4 *line, uint2 v, u32 call) {
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(line), "r"(v.x), "r"(call), "r"(v.y) : "memory");
}

// receive waits for a line, and is false if it was told to stop.
__device__ inline bool receive(const uint4 *line, uint2 &v, u32 call, u64 stop) {
	for (u32 spins = 1;; spins++) {
		u32 first, second;
		asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(first), "=r"(v.y), "=r"(second) : "l"(line) : "memory");
		if (first == call && second == call) return true;
		// The word is the host's, behind a bus that all threads share.
		if (spins % 16384 == 0 && *(volatile u32 *)stop) return false;
	}
}

template <class T> struct Line {
	static const int N = sizeof(uint2) / sizeof(T);
	union {
		uint2 raw;
		T v[N];
	};
	__device__ void load(const T *p, u64 i, u64 n) {
#pragma unroll
		for (int j = 0; j < N; j++)
			if (i * N + j < n) v[j] = p[i * N + j];
	}
};

// one_shot sums in the order of the ranks, so that all get the same bits. Once a
// call was stopped nothing is sent any more: the elements of later ones may come of
// what that call left behind.
template <class T> __device__ inline void one_shot(const OneShot &a) {
	typedef typename Arith<T>::type A;
	const int N = Line<T>::N;
	const T *src = (const T *)a.src;
	const u64 lines = (a.n + N - 1) / N;
	const u32 stopped = *(const volatile u32 *)a.stopped;
	for (u64 i = global_thread(); i < lines; i += global_threads()) {
		Line<T> own;
		own.raw = make_uint2(0, 0);
		own.load(src, i, a.n);
		if (stopped) return;
		for (u32 k = 1; k < a.ranks; k++) {
			u32 to = a.rank + k < a.ranks ? a.rank + k : a.rank + k - a.ranks;
			send(slot(a, to, a.rank) + i, own.raw, a.call);
		}
	}
	for (u64 i = global_thread(); i < lines; i += global_threads()) {
		A sum[N];
		for (u32 r = 0; r < a.ranks; r++) {
			Line<T> part;
			if (r == a.rank) part.load(src, i, a.n);
			else if (!receive(slot(a, a.rank, r) + i, part.raw, a.call, a.stop)) {
				*(volatile u32 *)a.stopped = 1;
				return;
			}
#pragma unroll
			for (int j = 0; j < N; j++) sum[j] = r == 0 ? up(part.v[j]) : sum[j] + up(part.v[j]);
		}
#pragma unroll
		for (int j = 0; j < N; j++)
			if (i * N + j < a.n) ((T *)a.dst)[i * N + j] = down<T>(sum[j] * (A)a.scale);
	}
}

#define KERNEL(name, T) \
	extern "C" __global__ void __launch_bounds__(512) one_shot_##name(const OneShot a) { one_shot<T>(a); }
EACH_FLOAT(KERNEL)
