// The small all-reduce takes one step: every rank writes its elements into the memory of all ranks,
// and sums the elements that it finds in its own memory.
//
// Elements are sent in lines of 16 bytes: 4 bytes of elements, the 4-byte call number, 4 bytes of
// elements, the call number again. The GPU writes each aligned half of a line at once, so a half
// with the right call number also has its elements. No other synchronisation is needed. NCCL's
// protocol LL works in the same way.

// SmallAllReduce is the structure small_all_reduce in abi.h.
struct SmallAllReduce {
	u64 slots[8]; // each rank's memory, as mapped by this rank
	u64 stop;     // a word in host memory; not 0: stop waiting
	u64 stopped;  // a word in GPU memory; not 0: a call was stopped
	u64 src, dst, n;
	double scale; // factor of the sum
	u32 rank, ranks, call, lines; // lines: lines in a slot
	u64 at; // the address of a word that replaces call, or 0
};

// slot returns the first line of rank of's slot in rank in's memory. A slot is written again two
// calls later. By then its reader has read it: the writer has received the reader's lines of the
// call in between, which the reader sends only after it has finished the earlier call.
__device__ inline uint4 *slot(const SmallAllReduce &a, u32 call, u32 in, u32 of) {
	return (uint4 *)a.slots[in] + ((u64)(call & 1) * a.ranks + of) * a.lines;
}

__device__ inline void send(uint4 *line, uint2 v, u32 call) {
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(line), "r"(v.x), "r"(call), "r"(v.y) : "memory");
}

// receive waits for a line. It returns false if it was stopped.
__device__ inline bool receive(const uint4 *line, uint2 &v, u32 call, u64 stop) {
	for (u32 spins = 1;; spins++) {
		u32 first, second;
		asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(first), "=r"(v.y), "=r"(second) : "l"(line) : "memory");
		if (first == call && second == call) return true;
		// Poll rarely: the word is in host memory, behind a bus that all threads share.
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

// small_all_reduce sums in the order of the ranks, so that all ranks get the same bits. After a
// call was stopped, later calls send nothing, because their elements may depend on its invalid
// result.
template <class T> __device__ inline void small_all_reduce(const SmallAllReduce &a) {
	typedef typename Arith<T>::type A;
	const int N = Line<T>::N;
	const T *src = (const T *)a.src;
	const u64 lines = (a.n + N - 1) / N;
	const u32 call = a.at != 0 ? *(const u64 *)a.at : a.call;
	const u32 stopped = *(const volatile u32 *)a.stopped;
	for (u64 i = global_thread(); i < lines; i += global_threads()) {
		Line<T> self;
		self.raw = make_uint2(0, 0);
		self.load(src, i, a.n);
		if (stopped) return;
		for (u32 k = 1; k < a.ranks; k++) {
			u32 to = a.rank + k < a.ranks ? a.rank + k : a.rank + k - a.ranks;
			send(slot(a, call, to, a.rank) + i, self.raw, call);
		}
	}
	for (u64 i = global_thread(); i < lines; i += global_threads()) {
		A sum[N];
		for (u32 r = 0; r < a.ranks; r++) {
			Line<T> part;
			if (r == a.rank) part.load(src, i, a.n);
			else if (!receive(slot(a, call, a.rank, r) + i, part.raw, call, a.stop)) {
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
	extern "C" __global__ void __launch_bounds__(512) small_all_reduce_##name(const SmallAllReduce a) { small_all_reduce<T>(a); }
EACH_FLOAT(KERNEL)
