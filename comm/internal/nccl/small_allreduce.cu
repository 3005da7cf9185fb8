// Without wide lines, a small all-reduce takes one step: every rank writes its elements into the memory
// of all ranks, and sums the elements that arrive in its own memory.
//
// As in NCCL's LL protocol, data is sent in lines of 16 bytes: 4 bytes of elements, the 4-byte call
// number, 4 bytes of elements, the call number again. The GPU writes each aligned half of a line
// atomically, so a half with the right call number also has its elements, and no other synchronization is
// needed.
//
// Larger calls use wide lines if NVLink connects the GPUs: see below.

// SmallAllReduce is the structure small_all_reduce in abi.h.
struct SmallAllReduce {
	u64 slots[8]; // each rank's memory, as mapped by this rank
	u64 stop;     // a word in host memory; if not 0, stop waiting
	u64 stopped;  // a word in GPU memory; not 0 if a call was stopped
	u64 src, dst, n;
	double scale; // factor of the sum
	u32 rank, ranks, call, lines; // lines: lines in a slot
	u64 at;     // address of a word that overrides call, or 0
	u64 wide;   // offset of the slots of wide lines in a rank's memory
	u64 groups; // groups of wide lines in a slot
};

__device__ inline u32 call_number(const SmallAllReduce &a) { return a.at != 0 ? *(const u64 *)a.at : a.call; }

// slot returns the first line of rank of's slot in rank in's memory. A slot is reused two calls later. By
// then its reader has read it: the writer has received the reader's lines of the call in between, which
// the reader sends only after it has finished the earlier call.
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
		// Poll rarely: the word is in host memory, and all threads share the bus.
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

// small_all_reduce sums in rank order, so that all ranks get bit-identical results. After a call was
// stopped, later calls send nothing, because their elements may depend on its invalid result.
template <class T> __device__ inline void small_all_reduce(const SmallAllReduce &a) {
	typedef typename Arith<T>::type A;
	const int N = Line<T>::N;
	const T *src = (const T *)a.src;
	const u64 lines = (a.n + N - 1) / N;
	const u32 call = call_number(a), stopped = *(const volatile u32 *)a.stopped;
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

// As in NCCL's LL128 protocol, a wide line has 120 bytes of elements, and the call number twice in its
// last 8 bytes. Eight threads of a warp write it in one instruction, whose bytes NVLink delivers in
// address order. So when the call number has arrived, the elements have too. A warp handles a group of
// four lines.
//
// Two ranks take one step, as above. Three or more ranks take two steps, which sends fewer bytes. Every
// rank owns a part of the elements. In the first step each rank writes its elements of a part into the
// memory of the part's owner. In the second step the owner sums them, and writes the sums into the memory
// of all ranks.
const int GROUP_LINES = 4, LINE_UNITS = 15; // a unit is 8 bytes

// Wide holds the 16 bytes of a group that one thread handles: two units of elements or, at the end of
// a line, one unit and the call number twice.
template <class T> union Wide {
	uint4 raw;
	T v[sizeof(uint4) / sizeof(T)];
};

__device__ inline bool ends_line() { return threadIdx.x % 8 == 7; }

// Span is the elements of a thread in a group: n of them, which may be 0, from element `first`.
template <class T> struct Span {
	static const int UNIT = 8 / sizeof(T);
	u64 first;
	int n;
	bool units; // they are whole units in aligned memory
	__device__ Span(u64 group, const SmallAllReduce &a) {
		const u32 lane = threadIdx.x % 32, most = ends_line() ? UNIT : 2 * UNIT;
		first = ((group * GROUP_LINES + lane / 8) * LINE_UNITS + lane % 8 * 2) * UNIT;
		n = first >= a.n ? 0 : a.n - first < most ? a.n - first : most;
		units = n % UNIT == 0 && ((a.src | a.dst) & 7) == 0;
	}
	__device__ void load(Wide<T> &x, u64 from) const {
		const T *p = (const T *)from + first;
		x.raw = make_uint4(0, 0, 0, 0);
		if (units) {
			uint2 unit;
			if (n > 0) unit = ((const uint2 *)p)[0], x.raw.x = unit.x, x.raw.y = unit.y;
			if (n > UNIT) unit = ((const uint2 *)p)[1], x.raw.z = unit.x, x.raw.w = unit.y;
			return;
		}
#pragma unroll
		for (int j = 0; j < 2 * UNIT; j++)
			if (j < n) x.v[j] = p[j];
	}
	__device__ void store(const Wide<T> &x, u64 to) const {
		T *p = (T *)to + first;
		if (units) {
			if (n > 0) ((uint2 *)p)[0] = make_uint2(x.raw.x, x.raw.y);
			if (n > UNIT) ((uint2 *)p)[1] = make_uint2(x.raw.z, x.raw.w);
			return;
		}
#pragma unroll
		for (int j = 0; j < 2 * UNIT; j++)
			if (j < n) p[j] = x.v[j];
	}
};

// wide_slot returns this thread's position in the first group of rank of's slot for a step in rank in's
// memory. A slot is reused two calls later. By then the writer has received lines of the call in between
// from every other rank, because every rank owns at least one group. A rank sends those only after it has
// finished the earlier call, and so has read the slot.
__device__ inline uint4 *wide_slot(const SmallAllReduce &a, u32 call, u32 step, u32 in, u32 of) {
	return (uint4 *)(a.slots[in] + a.wide) + (((call & 1) * (a.ranks == 2 ? 1 : 2) + step) * a.ranks + of) * a.groups * 32 + threadIdx.x % 32;
}

// send_wide writes a group of lines. All threads of the warp must call it.
__device__ inline void send_wide(uint4 *to, uint4 v, u32 call) {
	if (ends_line()) v.z = v.w = call;
	__syncwarp();
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// receive_wide waits for those of N groups that are set in `which`. All threads of the warp must call it
// with the same bits. It returns false if it was stopped. It loads the lines again after it has seen
// their call numbers: the elements arrive before the number, but the load that saw the number may have
// read the elements earlier.
template <class T, int N> __device__ inline bool receive_wide(uint4 *const (&from)[N], u32 which, Wide<T> (&got)[N], u32 call, u64 stop) {
	for (u32 spins = 1, complete = false;; spins++) {
		bool arrived = true;
		__syncwarp();
#pragma unroll
		for (int i = 0; i < N; i++) {
			if ((which >> i & 1) == 0) continue;
			uint4 &v = got[i].raw;
			asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from[i]) : "memory");
		}
		if (complete) return true;
#pragma unroll
		for (int i = 0; i < N; i++)
			if ((which >> i & 1) != 0 && ends_line()) arrived &= got[i].raw.z == call && got[i].raw.w == call;
		complete = __all_sync(~0u, arrived);
		if (!complete && spins % 16384 == 0 && __any_sync(~0u, *(volatile u32 *)stop != 0)) return false;
	}
}

// wide_all_reduce is for at most PEERS other ranks. A warp waits for BATCH groups of each at once.
template <class T, int PEERS, int BATCH> __device__ inline void wide_all_reduce(const SmallAllReduce &a) {
	typedef typename Arith<T>::type A;
	const int N = sizeof(uint4) / sizeof(T), LATER = 4; // LATER: groups of sums that a warp waits for at once
	const bool once = PEERS == 1;
	const u32 elements = GROUP_LINES * LINE_UNITS * (8 / sizeof(T)), groups = (a.n + elements - 1) / elements;
	const u32 rank = a.rank, ranks = a.ranks, peers = ranks - 1, warp = global_thread() / 32, warps = global_threads() / 32, call = call_number(a);
	// Rank r owns the groups from begin(r) up to end(r). If the call takes one step, every rank owns all.
	auto begin = [=](u32 r) { return once ? 0 : groups * r / ranks; };
	auto end = [=](u32 r) { return once ? groups : groups * (r + 1) / ranks; };
	auto peer = [=](u32 k) { return rank + k < ranks ? rank + k : rank + k - ranks; }; // for k from 1 to peers
	volatile u32 *const stopped = (volatile u32 *)a.stopped;
	auto stop = [=] { *stopped = 1; };
	if (__any_sync(~0u, *stopped != 0)) return;

	for (u32 k = 1; k <= peers; k++) {
		const u32 to = peer(k), first = begin(to), last = end(to);
		uint4 *const at = wide_slot(a, call, 0, to, rank);
		for (u32 g = first + warp; g < last; g += warps) {
			Wide<T> x;
			Span<T>(g, a).load(x, a.src);
			send_wide(at + (g - first) * 32, x.raw, call);
		}
	}

	const u32 first = begin(rank), last = end(rank);
	for (u32 g = first + warp; g < last; g += warps * BATCH) {
		uint4 *from[BATCH * PEERS];
		Wide<T> got[BATCH * PEERS];
		u32 which = 0;
#pragma unroll
		for (int i = 0; i < BATCH * PEERS; i++) {
			const u32 p = i % PEERS, at = g + i / PEERS * warps; // p: the peers in order of rank
			from[i] = wide_slot(a, call, 0, rank, p < rank ? p : p + 1) + (at - first) * 32;
			if (p < peers && at < last) which |= 1 << i;
		}
		if (!receive_wide(from, which, got, call, a.stop)) return stop();
#pragma unroll
		for (int b = 0; b < BATCH; b++) {
			const u32 at = g + b * warps;
			if (at >= last) break;
			const Span<T> span(at, a);
			Wide<T> x;
			span.load(x, a.src);
#pragma unroll
			for (int j = 0; j < N; j++) {
				A sum = -0.0; // the neutral element of addition
#pragma unroll
				for (u32 p = 0; p <= PEERS; p++) {
					if (p == rank) sum += up(x.v[j]);
					if (p < PEERS && p < peers) sum += up(got[b * PEERS + p].v[j]);
				}
				x.v[j] = down<T>(sum * (A)a.scale);
			}
			span.store(x, a.dst);
			if (once) continue;
			for (u32 k = 1; k <= peers; k++) send_wide(wide_slot(a, call, 1, peer(k), rank) + (at - first) * 32, x.raw, call);
		}
	}
	if (once) return;

	const u32 most = groups / ranks + 1, all = most * peers; // as if every peer owned `most` groups
	for (u32 i = warp; i < all; i += warps * LATER) {
		uint4 *from[LATER];
		Wide<T> got[LATER];
		u32 at[LATER], which = 0;
#pragma unroll
		for (int b = 0; b < LATER; b++) {
			const u32 nth = (i + b * warps) / peers, of = peer(1 + (i + b * warps) % peers);
			at[b] = begin(of) + nth;
			from[b] = wide_slot(a, call, 1, rank, of) + nth * 32;
			if (at[b] < end(of)) which |= 1 << b;
		}
		if (!receive_wide(from, which, got, call, a.stop)) return stop();
#pragma unroll
		for (int b = 0; b < LATER; b++)
			if ((which >> b & 1) != 0) Span<T>(at[b], a).store(got[b], a.dst);
	}
}

template <class T> __device__ inline void wide_all_reduce(const SmallAllReduce &a) {
	if (a.ranks == 2) wide_all_reduce<T, 1, 4>(a);
	else if (a.ranks <= 4) wide_all_reduce<T, 3, 2>(a);
	else wide_all_reduce<T, 7, 1>(a);
}

#define KERNELS(name, T) \
	extern "C" __global__ void __launch_bounds__(512) small_all_reduce_##name(const SmallAllReduce a) { small_all_reduce<T>(a); } \
	extern "C" __global__ void __launch_bounds__(512) small_all_reduce_wide_##name(const SmallAllReduce a) { wide_all_reduce<T>(a); }
EACH_FLOAT(KERNELS)
