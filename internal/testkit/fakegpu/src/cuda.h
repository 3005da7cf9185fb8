// CUDA's built-in functions and variables, for kernels that run on the host. Each thread of a
// kernel is a coroutine. One host thread runs the blocks one after the other. A coroutine runs
// until it ends or waits for others, at a barrier or in an exchange within its warp. Memory is the
// host's, so accesses out of bounds are not detected. Races between threads are not detected
// either, because the threads run in one fixed order.
//
// A kernel must take one structure of 64-bit words by value. How the ABI passes it depends on its size alone, so a
// call needs to know only that.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <sys/mman.h>
#include <type_traits>
#include <vector>

using std::abs; using std::acos; using std::atan; using std::cos; using std::erf; using std::erfc; using std::exp; using std::exp2;
using std::expm1; using std::fabs; using std::floor; using std::fma; using std::fmod; using std::isfinite; using std::isinf;
using std::isnan; using std::log; using std::log1p; using std::log2; using std::pow; using std::rint; using std::sin; using std::sqrt;
using std::tanh; using std::fmax; using std::fmin; using std::ceil;

#define __device__
#define __host__
#define __grid_constant__
#if defined __x86_64__
#define __global__ __attribute__((ms_abi)) // a structure of 8 bytes is passed in a register, a larger one by its address
#else
#define __global__ // a structure of up to 16 bytes is passed in registers, a larger one by its address
#endif
#define __constant__ static
#define __shared__ static // blocks run one at a time
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)

struct dim3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

template <class A, class B> inline typename std::common_type<A, B>::type min(A a, B b) {
	if constexpr (std::is_floating_point_v<typename std::common_type<A, B>::type>) return std::fmin((typename std::common_type<A, B>::type)a, b);
	else return (typename std::common_type<A, B>::type)a < b ? a : b;
}
template <class A, class B> inline typename std::common_type<A, B>::type max(A a, B b) {
	if constexpr (std::is_floating_point_v<typename std::common_type<A, B>::type>) return std::fmax((typename std::common_type<A, B>::type)a, b);
	else return (typename std::common_type<A, B>::type)a > b ? a : b;
}

template <class To, class From> inline To bits_of(From v) {
	static_assert(sizeof(To) == sizeof(From));
	To r;
	memcpy(&r, &v, sizeof r);
	return r;
}
inline unsigned __float_as_uint(float v) { return bits_of<unsigned>(v); }
inline int __float_as_int(float v) { return bits_of<int>(v); }
inline float __uint_as_float(unsigned v) { return bits_of<float>(v); }
inline float __int_as_float(int v) { return bits_of<float>(v); }
inline double __longlong_as_double(long long v) { return bits_of<double>(v); }
inline long long __double_as_longlong(double v) { return bits_of<long long>(v); }

// toward_zero returns v as a float, rounded towards zero.
inline float toward_zero(double v) {
	float f = (float)v;
	return std::fabs((double)f) > std::fabs(v) ? std::nextafterf(f, 0) : f;
}
inline float __double2float_rz(double v) { return toward_zero(v); }
inline float __double2float_rn(double v) { return (float)v; }
inline float __ll2float_rn(long long v) { return (float)v; }
inline float __ll2float_rz(long long v) {
	float f = (float)v;
	bool over = v >= 0 ? (__int128)f > v : (__int128)f < v;
	return over ? std::nextafterf(f, 0) : f;
}
inline double __ll2double_rn(long long v) { return (double)v; }
template <class F> inline long long saturated(F v) {
	if (v != v) return INT64_MIN;
	return v >= (F)9223372036854775808.0 ? INT64_MAX : v < (F)-9223372036854775808.0 ? INT64_MIN : (long long)v;
}
inline long long __double2ll_rz(double v) { return saturated(v); }
inline long long __float2ll_rz(float v) { return saturated(v); }
inline int __float2int_rn(float v) { return (int)rintf(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1 / sqrtf(v); }
inline double rsqrt(double v) { return 1 / std::sqrt(v); }
inline float rsqrt(float v) { return 1 / sqrtf(v); }
inline double normcdf(double v) { return 0.5 * std::erfc(-v * 0.70710678118654752440); }
inline float normcdff(float v) { return (float)normcdf((double)v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(v); }
template <class T> inline T __ldg(const T *p) { return *p; }

// Conversions of 16-bit floats, rounded to nearest, ties to even. NaNs lose their payload.
inline float half_to_float(uint16_t h) {
	unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
	if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
	float magnitude = exponent == 0 ? ldexpf(fraction, -24) : ldexpf(1024 + fraction, (int)exponent - 25);
	return sign ? -magnitude : magnitude;
}
inline uint16_t float_to_half(float v) {
	uint16_t sign = __float_as_uint(v) >> 16 & 0x8000;
	float a = fabsf(v);
	if (a != a) return 0x7fff;
	if (a >= 65520) return sign | 0x7c00;
	if (a < 6.103515625e-5f) return sign | (uint16_t)rintf(ldexpf(a, 24)); // rounding up may give the smallest normal number
	int e;
	uint16_t f = rintf(ldexpf(frexpf(a, &e), 11)); // 1024 to 2048
	return sign | (((e + 14) << 10) + (f - 1024));
}
inline uint16_t float_to_bfloat(float v) {
	unsigned u = __float_as_uint(v);
	return v != v ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// The block that is running.
namespace block {
struct warp { unsigned arrived, phase; uint64_t slots[2][32]; }; // threads are at most one exchange apart, so two copies of slots are enough
struct thread {
	void *stack, *context;
	dim3 index;
	const unsigned *awaited; // the thread waits until *awaited differs from from; null: it is not waiting
	unsigned from;
	bool ended;
};
static const size_t stack_size = 128 << 10;
static std::vector<thread> threads;
static std::vector<warp> warps;
static unsigned current, alive, arrived, phase;
static void *scheduler;

// fakegpu_swap saves the current context in *from and continues with the context to. It saves the
// registers that a function must preserve on the stack.
extern "C" void fakegpu_swap(void **from, void *to);
#if defined __x86_64__
asm(".text\n.local fakegpu_swap\nfakegpu_swap:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void *prepare(char *top, void (*entry)()) {
	void **sp = (void **)((uintptr_t)top & ~(uintptr_t)15);
	*--sp = nullptr; // return address of entry, which never returns
	*--sp = (void *)entry;
	return sp - 6;
}
#elif defined __aarch64__
asm(".text\n.local fakegpu_swap\nfakegpu_swap:\n"
	"sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
	"stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
	"stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\nmov x2, sp\nstr x2, [x0]\nmov sp, x1\n"
	"ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
	"ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
	"ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
static void *prepare(char *top, void (*entry)()) {
	void **sp = (void **)((uintptr_t)top & ~(uintptr_t)15) - 20;
	sp[11] = (void *)entry;
	return sp;
}
#endif

inline void yield() { fakegpu_swap(&threads[current].context, scheduler); }

// arrive counts a thread at a barrier, and returns when wanted threads have arrived.
inline void arrive(unsigned &arrived, unsigned &phase, unsigned wanted) {
	if (++arrived >= wanted) {
		arrived = 0;
		phase++;
		return;
	}
	threads[current].awaited = &phase;
	threads[current].from = phase;
	yield();
}
inline void wait() { arrive(arrived, phase, alive); }
inline void wait_warp(unsigned mask) {
	unsigned wanted = 0, first = current / 32 * 32;
	for (unsigned l = 0; l < 32 && first + l < threads.size(); l++) wanted += (mask >> l & 1) && !threads[first + l].ended;
	arrive(warps[current / 32].arrived, warps[current / 32].phase, wanted);
}
// share gives every thread of a warp the values of all its threads.
template <class T> inline const uint64_t *share(unsigned mask, T v) {
	static_assert(sizeof(T) <= 8);
	warp &w = warps[current / 32];
	uint64_t *slots = w.slots[w.phase & 1];
	memcpy(&slots[current % 32], &v, sizeof v);
	wait_warp(mask);
	return slots;
}
template <class T> inline T exchange(unsigned mask, T v, int from) {
	T r;
	memcpy(&r, &share(mask, v)[from], sizeof r);
	return r;
}

template <size_t N> struct alignas(16) blob { char bytes[N]; };
static void (*function)();
static blob<4096> args;
static size_t args_size;

template <size_t N> void call() {
	blob<N> own; // the kernel may write to its argument
	memcpy(&own, &args, N);
	uint64_t words[2];
	memcpy(words, &own, sizeof words);
#if defined __x86_64__
	if (args_size <= 8) return ((void (__global__ *)(uint64_t))function)(words[0]);
#else
	double floats[2]; // a structure of floating-point numbers alone is passed in their registers
	memcpy(floats, words, sizeof floats);
	if (args_size <= 16) return ((void (__global__ *)(uint64_t, uint64_t, double, double))function)(words[0], words[1], floats[0], floats[1]);
#endif
	((void (__global__ *)(blob<N> *))function)(&own);
}

static void body() {
	args_size <= 256 ? call<256>() : call<4096>();
	threads[current].ended = true;
	alive--;
	if (alive > 0 && arrived >= alive) {
		arrived = 0;
		phase++;
	}
	yield();
	abort();
}

// run runs one block. It returns false if threads wait at a barrier that the others never reach.
static bool run() {
	alive = threads.size();
	arrived = 0;
	for (warp &w : warps) w.arrived = 0;
	for (thread &t : threads) {
		t.ended = false;
		t.awaited = nullptr;
		t.context = prepare((char *)t.stack + stack_size, body);
	}
	while (alive > 0) {
		bool went = false;
		for (current = 0; current < threads.size(); current++) {
			thread &t = threads[current];
			if (t.ended || t.awaited != nullptr && *t.awaited == t.from) continue;
			t.awaited = nullptr;
			threadIdx = t.index;
			went = true;
			fakegpu_swap(&scheduler, t.context);
		}
		if (!went) return false;
	}
	return true;
}
}

// fakegpu_launch runs a grid and returns a CUresult.
extern "C" int fakegpu_launch(void (*f)(), const char *name, dim3 grid, dim3 threads, const void *args, size_t size) {
	const size_t n = (size_t)threads.x * threads.y * threads.z;
	if (n == 0 || n > 1024 || size > sizeof block::args) {
		fprintf(stderr, "fakegpu: %s: %zu threads a block, %zu bytes of arguments\n", name, n, size);
		return 1;
	}
	block::function = f;
	block::args_size = size;
	memcpy(&block::args, args, size);
	size_t had = block::threads.size();
	for (size_t i = n; i < had; i++) munmap(block::threads[i].stack, block::stack_size);
	block::threads.resize(n);
	block::warps.assign((n + 31) / 32, {});
	for (size_t i = 0; i < n; i++) {
		if (i >= had)
			block::threads[i].stack = mmap(nullptr, block::stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		block::threads[i].index = {(unsigned)(i % threads.x), (unsigned)(i / threads.x % threads.y), (unsigned)(i / threads.x / threads.y)};
	}
	blockDim = threads;
	gridDim = grid;
	for (unsigned z = 0; z < grid.z; z++)
		for (unsigned y = 0; y < grid.y; y++)
			for (unsigned x = 0; x < grid.x; x++) {
				blockIdx = {x, y, z};
				if (block::run()) continue;
				fprintf(stderr, "fakegpu: %s: threads of block %u, %u, %u wait for others that do not arrive\n", name, x, y, z);
				return 719;
			}
	return 0;
}

inline void __syncthreads() { block::wait(); }
inline int __syncthreads_or(int v) {
	static int any;
	if (v) any = 1;
	block::wait();
	int r = any;
	block::wait(); // all threads have read any
	any = 0;
	block::wait();
	return r;
}
inline int __syncthreads_and(int v) { return !__syncthreads_or(!v); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { block::wait_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline int lane_from(int lane, int width) {
	int self = block::current % 32;
	return self / width * width + lane % width;
}
template <class T> inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) { return block::exchange(mask, v, lane_from(lane, width)); }
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
	int self = block::current % 32, from = self ^ by;
	return block::exchange(mask, v, from / width > self / width ? self : from);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
	int self = block::current % 32, from = self + by;
	return block::exchange(mask, v, from / width == self / width ? from : self);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
	int self = block::current % 32, from = self - (int)by;
	return block::exchange(mask, v, from >= self / width * width ? from : self);
}
inline unsigned __ballot_sync(unsigned mask, int v) {
	const uint64_t *votes = block::share(mask, (uint64_t)(v != 0));
	unsigned r = 0;
	for (unsigned l = 0; l < 32 && block::current / 32 * 32 + l < block::threads.size(); l++)
		if (mask >> l & 1) r |= (unsigned)votes[l] << l;
	return r;
}
inline int __any_sync(unsigned mask, int v) { return __ballot_sync(mask, v) != 0; }
inline int __all_sync(unsigned mask, int v) { return __ballot_sync(mask, !v) == 0; }
inline unsigned __activemask() { return 0xffffffffu; }

template <class T, class V> inline T atomicAdd(T *p, V v) { T old = *p; *p = old + (T)v; return old; }
template <class T, class V> inline T atomicOr(T *p, V v) { T old = *p; *p = old | (T)v; return old; }
template <class T, class V> inline T atomicMax(T *p, V v) { T old = *p; if ((T)v > old) *p = v; return old; }
template <class T, class V> inline T atomicMin(T *p, V v) { T old = *p; if ((T)v < old) *p = v; return old; }
template <class T, class V> inline T atomicExch(T *p, V v) { T old = *p; *p = v; return old; }
template <class T, class V, class W> inline T atomicCAS(T *p, V expected, W v) { T old = *p; if (old == (T)expected) *p = v; return old; }
