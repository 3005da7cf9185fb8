// Types and functions of libnccl, loaded at run time: as documented for the oldest supported
// release, in a table that library.go fills. Handles are pointer-sized integers, which Go's garbage
// collector ignores.
//
// NCCL uses the device whose context is current on the calling thread, and goroutines move between
// threads. So every wrapper takes the context and makes it current if it is not. A batch of
// operations is one C call, because NCCL keeps an open group per thread.
#ifndef GODDP_NCCL_ABI_H
#define GODDP_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { unique_id_size = 128 };

typedef struct {
	char bytes[unique_id_size];
} unique_id;

// The configuration of a communicator in release 2.18.1. Later releases only append fields: they
// read size bytes and use version to find out which fields are set.
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share;
} config;

#define NCCL_FUNCTIONS(X) \
	X(ncclGetVersion, int, (int *)) \
	X(ncclGetErrorString, const char *, (int)) \
	X(ncclGetLastError, const char *, (uintptr_t)) \
	X(ncclGetUniqueId, int, (unique_id *)) \
	X(ncclCommInitRankConfig, int, (uintptr_t *, int, unique_id, int, config *)) \
	X(ncclCommDestroy, int, (uintptr_t)) \
	X(ncclCommAbort, int, (uintptr_t)) \
	X(ncclCommGetAsyncError, int, (uintptr_t, int *)) \
	X(ncclMemAlloc, int, (uintptr_t *, size_t)) \
	X(ncclMemFree, int, (uintptr_t)) \
	X(ncclAllReduce, int, (uintptr_t, uintptr_t, size_t, int, int, uintptr_t, uintptr_t)) \
	X(ncclBroadcast, int, (uintptr_t, uintptr_t, size_t, int, int, uintptr_t, uintptr_t)) \
	X(ncclReduce, int, (uintptr_t, uintptr_t, size_t, int, int, int, uintptr_t, uintptr_t)) \
	X(ncclAllGather, int, (uintptr_t, uintptr_t, size_t, int, uintptr_t, uintptr_t)) \
	X(ncclReduceScatter, int, (uintptr_t, uintptr_t, size_t, int, int, uintptr_t, uintptr_t)) \
	X(ncclSend, int, (uintptr_t, size_t, int, int, uintptr_t, uintptr_t)) \
	X(ncclRecv, int, (uintptr_t, size_t, int, int, uintptr_t, uintptr_t)) \
	X(ncclRedOpCreatePreMulSum, int, (int *, void *, int, int, uintptr_t)) \
	X(ncclRedOpDestroy, int, (int, uintptr_t)) \
	X(ncclGroupStart, int, (void)) \
	X(ncclGroupEnd, int, (void))

// With this handle another process maps memory.
enum { ipc_handle_size = 64 };

typedef struct {
	char bytes[ipc_handle_size];
} ipc_handle;

// The functions of libcuda that the wrappers call.
#define DRIVER_FUNCTIONS(X) \
	X(cuCtxGetCurrent, int, (uintptr_t *)) \
	X(cuEventRecord, int, (uintptr_t, uintptr_t)) \
	X(cuCtxSetCurrent, int, (uintptr_t)) \
	X(cuCtxGetDevice, int, (int *)) \
	X(cuDeviceGetPCIBusId, int, (char *, int, int)) \
	X(cuDeviceGetByPCIBusId, int, (int *, const char *)) \
	X(cuDeviceGetP2PAttribute, int, (int *, int, int, int)) \
	X(cuDeviceGetAttribute, int, (int *, int, int)) \
	X(cuMemGetInfo_v2, int, (size_t *, size_t *)) \
	X(cuMemsetD8Async, int, (uint64_t, unsigned char, size_t, uintptr_t)) \
	X(cuMemAlloc_v2, int, (uint64_t *, size_t)) \
	X(cuMemFree_v2, int, (uint64_t)) \
	X(cuIpcGetMemHandle, int, (ipc_handle *, uint64_t)) \
	X(cuIpcOpenMemHandle_v2, int, (uint64_t *, ipc_handle, unsigned)) \
	X(cuIpcCloseMemHandle, int, (uint64_t)) \
	X(cuLaunchKernel, int, (uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **, void **))

#define FIELD(name, result, args) result(*name) args;
#define NAME(name, result, args) #name,

typedef struct {
	NCCL_FUNCTIONS(FIELD)
} nccl;

typedef struct {
	DRIVER_FUNCTIONS(FIELD)
} driver;

static const char *const nccl_symbols[] = {NCCL_FUNCTIONS(NAME)};
static const char *const driver_symbols[] = {DRIVER_FUNCTIONS(NAME)};
enum {
	nccl_count = sizeof nccl_symbols / sizeof *nccl_symbols,
	driver_count = sizeof driver_symbols / sizeof *driver_symbols,
};

static inline const char *nccl_symbol(int i) { return nccl_symbols[i]; }
static inline const char *driver_symbol(int i) { return driver_symbols[i]; }
static inline void nccl_set(nccl *n, int i, void *f) { ((void **)n)[i] = f; }
static inline void driver_set(driver *d, int i, void *f) { ((void **)d)[i] = f; }

static inline int nccl_version(nccl *n, int *v) { return n->ncclGetVersion(v); }
static inline const char *nccl_error_string(nccl *n, int code) { return n->ncclGetErrorString(code); }
static inline const char *nccl_last_error(nccl *n) { return n->ncclGetLastError(0); }

// Wrappers return error codes of libcuda negated, to distinguish them from NCCL's.

static inline int enter(driver *d, uintptr_t ctx) {
	uintptr_t current = 0;
	if (d->cuCtxGetCurrent(&current) == 0 && current == ctx) return 0;
	return -d->cuCtxSetCurrent(ctx);
}

#define IN_CONTEXT(call) int r = enter(d, ctx); return r != 0 ? r : (call)

static inline int nccl_unique_id(nccl *n, driver *d, uintptr_t ctx, unique_id *id) {
	IN_CONTEXT(n->ncclGetUniqueId(id));
}

// The communicator is a blocking one.
static inline int nccl_init(nccl *n, driver *d, uintptr_t ctx, uintptr_t *comm, int ranks, const unique_id *id, int rank) {
	config c = {
		.size = sizeof c, .magic = 0xcafebeef, .version = 21801, .blocking = 1, .cga_cluster_size = INT_MIN,
		.min_ctas = INT_MIN, .max_ctas = INT_MIN, .net_name = NULL, .split_share = INT_MIN,
	};
	IN_CONTEXT(n->ncclCommInitRankConfig(comm, ranks, *id, rank, &c));
}

static inline int nccl_destroy(nccl *n, driver *d, uintptr_t ctx, uintptr_t comm) { IN_CONTEXT(n->ncclCommDestroy(comm)); }
static inline int nccl_abort(nccl *n, driver *d, uintptr_t ctx, uintptr_t comm) { IN_CONTEXT(n->ncclCommAbort(comm)); }

static inline int nccl_async_error(nccl *n, uintptr_t comm, int *code) { return n->ncclCommGetAsyncError(comm, code); }

static inline int nccl_alloc(nccl *n, driver *d, uintptr_t ctx, uintptr_t *p, size_t size) { IN_CONTEXT(n->ncclMemAlloc(p, size)); }
static inline int nccl_free(nccl *n, driver *d, uintptr_t ctx, uintptr_t p) { IN_CONTEXT(n->ncclMemFree(p)); }

static inline int drv_bus_id(driver *d, uintptr_t ctx, char *id, int size) {
	int device = 0, r = enter(d, ctx);
	if (r == 0) r = -d->cuCtxGetDevice(&device);
	return r != 0 ? r : -d->cuDeviceGetPCIBusId(id, size, device);
}
// Properties of a pair of devices.
typedef struct {
	int has_atomics;    // native atomics on the other's memory
	int capability[2];  // compute capabilities times ten, its own first
} gpu_pair;

// drv_pair describes the current device and the one with the given PCI bus id.
static inline int drv_pair(driver *d, uintptr_t ctx, const char *id, gpu_pair *l) {
	enum { NATIVE_ATOMIC_SUPPORTED = 3, MAJOR = 75, MINOR = 76 };
	int devices[2], r = enter(d, ctx);
	if (r == 0) r = -d->cuCtxGetDevice(&devices[0]);
	if (r == 0) r = -d->cuDeviceGetByPCIBusId(&devices[1], id);
	if (r == 0) r = -d->cuDeviceGetP2PAttribute(&l->has_atomics, NATIVE_ATOMIC_SUPPORTED, devices[0], devices[1]);
	for (int i = 0; i < 2 && r == 0; i++) {
		int minor = 0;
		r = -d->cuDeviceGetAttribute(&l->capability[i], MAJOR, devices[i]);
		if (r == 0) r = -d->cuDeviceGetAttribute(&minor, MINOR, devices[i]);
		l->capability[i] = 10 * l->capability[i] + minor;
	}
	return r;
}

static inline int drv_mem_info(driver *d, uintptr_t ctx, size_t *free, size_t *total) { IN_CONTEXT(-d->cuMemGetInfo_v2(free, total)); }
static inline int drv_zero(driver *d, uintptr_t ctx, uintptr_t p, size_t size, uintptr_t stream) {
	IN_CONTEXT(-d->cuMemsetD8Async(p, 0, size, stream));
}

static inline int drv_alloc(driver *d, uintptr_t ctx, uint64_t *p, size_t size) { IN_CONTEXT(-d->cuMemAlloc_v2(p, size)); }
static inline int drv_free(driver *d, uintptr_t ctx, uint64_t p) { IN_CONTEXT(-d->cuMemFree_v2(p)); }
static inline int drv_export(driver *d, uintptr_t ctx, ipc_handle *h, uint64_t p) { IN_CONTEXT(-d->cuIpcGetMemHandle(h, p)); }
static inline int drv_map(driver *d, uintptr_t ctx, uint64_t *p, const ipc_handle *h) {
	IN_CONTEXT(-d->cuIpcOpenMemHandle_v2(p, *h, 1 /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */));
}
static inline int drv_unmap(driver *d, uintptr_t ctx, uint64_t p) { IN_CONTEXT(-d->cuIpcCloseMemHandle(p)); }

// An operation of NCCL. The kind determines which fields are used.
enum { op_all_reduce, op_broadcast, op_reduce, op_all_gather, op_reduce_scatter, op_send, op_recv };

typedef struct {
	int kind;
	int type;   // ncclDataType_t
	int reduce; // ncclRedOp_t, or pre_mul_sum
	int peer;   // the peer or the root
	int alone;  // 1: an all-reduce that is not part of a Group
	uintptr_t src, dst;
	size_t count;
	uint64_t factor; // factor of pre_mul_sum, in the element type
} op;

enum { pre_mul_sum = -1 };

static inline int nccl_call(nccl *n, uintptr_t comm, uintptr_t stream, const op *o, int reduce) {
	switch (o->kind) {
	case op_all_reduce: return n->ncclAllReduce(o->src, o->dst, o->count, o->type, reduce, comm, stream);
	case op_broadcast: return n->ncclBroadcast(o->src, o->dst, o->count, o->type, o->peer, comm, stream);
	case op_reduce: return n->ncclReduce(o->src, o->dst, o->count, o->type, reduce, o->peer, comm, stream);
	case op_all_gather: return n->ncclAllGather(o->src, o->dst, o->count, o->type, comm, stream);
	case op_reduce_scatter: return n->ncclReduceScatter(o->src, o->dst, o->count, o->type, reduce, comm, stream);
	case op_send: return n->ncclSend(o->src, o->count, o->type, o->peer, comm, stream);
	default: return n->ncclRecv(o->dst, o->count, o->type, o->peer, comm, stream);
	}
}

// nccl_run enqueues an operation. For a PreMulSum it creates a reduction and destroys it at once:
// factors may change with every call, creation is cheap, and NCCL needs it only while the operation
// is enqueued.
static inline int nccl_run(nccl *n, uintptr_t comm, uintptr_t stream, const op *o) {
	if (o->reduce != pre_mul_sum) return nccl_call(n, comm, stream, o, o->reduce);
	enum { scalar_host_immediate = 1 };
	uint64_t factor = o->factor;
	int reduce = 0, r = n->ncclRedOpCreatePreMulSum(&reduce, &factor, o->type, scalar_host_immediate, comm);
	if (r != 0) return r;
	r = nccl_call(n, comm, stream, o, reduce);
	int end = n->ncclRedOpDestroy(reduce, comm);
	return r != 0 ? r : end;
}

// nccl_run_all enqueues operations, several as one group. It ends the group even after an error,
// because a group must not stay open on the thread.
static inline int nccl_run_all(nccl *n, uintptr_t comm, uintptr_t stream, const op *ops, int count) {
	if (count == 0) return 0;
	if (count == 1) return nccl_run(n, comm, stream, ops);
	int r = n->ncclGroupStart();
	if (r != 0) return r;
	for (int i = 0; i < count && r == 0; i++) r = nccl_run(n, comm, stream, &ops[i]);
	int end = n->ncclGroupEnd();
	return r != 0 ? r : end;
}

// nccl_enqueue enqueues operations and records an event after them.
static inline int nccl_enqueue(nccl *n, driver *d, uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t event, const op *ops, int count) {
	int r = enter(d, ctx);
	if (r == 0) r = nccl_run_all(n, comm, stream, ops, count);
	return r != 0 ? r : -d->cuEventRecord(event, stream);
}

// The arguments of a kernel in small_allreduce.cu.
enum { max_small_ranks = 8 };

typedef struct {
	uint64_t slots[max_small_ranks], stop, stopped, src, dst, count;
	double scale;
	uint32_t rank, ranks, call, lines;
	uint64_t at, wide, groups;
} small_all_reduce;

// small_enqueue launches a kernel and records an event after it.
static inline int small_enqueue(driver *d, uintptr_t ctx, uintptr_t kernel, uintptr_t stream, uintptr_t event,
		unsigned blocks, unsigned threads, const small_all_reduce *args) {
	enum { END, POINTER, SIZE };
	size_t size = sizeof *args;
	void *extra[] = {(void *)POINTER, (void *)args, (void *)SIZE, &size, (void *)END};
	int r = enter(d, ctx);
	if (r == 0) r = -d->cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, NULL, extra);
	return r != 0 ? r : -d->cuEventRecord(event, stream);
}

#endif
