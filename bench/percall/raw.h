// NCCL called from C. The functions of libnccl and libcuda are opened at run time, in a table that
// raw.go fills. The communicator and the stream are made as in bench/nccl_allreduce.c: with no
// configuration, and a stream that does not wait for the null stream.
#ifndef PERCALL_RAW_H
#define PERCALL_RAW_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { unique_id_size = 128 };

typedef struct {
	char bytes[unique_id_size];
} unique_id;

#define FUNCTIONS(X) \
	X(ncclGetVersion, int, (int *)) \
	X(ncclGetErrorString, const char *, (int)) \
	X(ncclGetUniqueId, int, (unique_id *)) \
	X(ncclCommInitRank, int, (uintptr_t *, int, unique_id, int)) \
	X(ncclCommAbort, int, (uintptr_t)) \
	X(ncclAllReduce, int, (uintptr_t, uintptr_t, size_t, int, int, uintptr_t, uintptr_t)) \
	X(cuCtxSetCurrent, int, (uintptr_t)) \
	X(cuStreamCreateWithPriority, int, (uintptr_t *, unsigned, int)) \
	X(cuStreamQuery, int, (uintptr_t)) \
	X(cuStreamDestroy_v2, int, (uintptr_t)) \
	X(cuEventCreate, int, (uintptr_t *, unsigned)) \
	X(cuEventRecord, int, (uintptr_t, uintptr_t)) \
	X(cuEventDestroy_v2, int, (uintptr_t))

#define FIELD(name, result, args) result(*name) args;
#define NAME(name, result, args) #name,

enum { events = 64 };

typedef struct {
	FUNCTIONS(FIELD)
	uintptr_t ctx, comm, stream, event[events];
} raw;

static const char *const raw_symbols[] = {FUNCTIONS(NAME)};
enum { raw_count = sizeof raw_symbols / sizeof *raw_symbols };

static inline const char *raw_symbol(int i) { return raw_symbols[i]; }
static inline void raw_set(raw *r, int i, void *f) { ((void **)r)[i] = f; }

static inline int raw_version(raw *r, int *v) { return r->ncclGetVersion(v); }
static inline const char *raw_error_string(raw *r, int code) { return r->ncclGetErrorString(code); }

// Every function makes the context current on its thread. Error codes of libcuda are returned
// negated, to distinguish them from NCCL's.

static inline int raw_unique_id(raw *r, unique_id *id) {
	int code = -r->cuCtxSetCurrent(r->ctx);
	return code != 0 ? code : r->ncclGetUniqueId(id);
}

static inline int raw_join(raw *r, int ranks, const unique_id *id, int rank) {
	enum { non_blocking = 1, without_time = 2 };
	int code = -r->cuCtxSetCurrent(r->ctx);
	if (code == 0) code = -r->cuStreamCreateWithPriority(&r->stream, non_blocking, 0);
	for (int i = 0; i < events && code == 0; i++) code = -r->cuEventCreate(&r->event[i], without_time);
	return code != 0 ? code : r->ncclCommInitRank(&r->comm, ranks, *id, rank);
}

// raw_leave aborts the calls in flight. It does not wait for other ranks.
static inline int raw_leave(raw *r) {
	int code = -r->cuCtxSetCurrent(r->ctx);
	if (code == 0) code = r->ncclCommAbort(r->comm);
	for (int i = 0; i < events && code == 0; i++) code = -r->cuEventDestroy_v2(r->event[i]);
	return code != 0 ? code : -r->cuStreamDestroy_v2(r->stream);
}

static inline double raw_seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

enum { raw_late = INT_MIN };

// raw_calls makes n all-reduces, in place, of count floats at p and waits for them. It polls
// without a pause, as cuStreamSynchronize does, and returns raw_late after timeout seconds. *took
// becomes the time in seconds. If record is set, it records an event behind each call.
static inline int raw_calls(raw *r, uintptr_t p, size_t count, int n, int record, double timeout, double *took) {
	enum { float32 = 7, sum = 0, not_ready = 600 };
	int code = -r->cuCtxSetCurrent(r->ctx);
	double start = raw_seconds();
	for (int i = 0; i < n && code == 0; i++) {
		code = r->ncclAllReduce(p, p, count, float32, sum, r->comm, r->stream);
		if (record && code == 0) code = -r->cuEventRecord(r->event[i % events], r->stream);
	}
	if (code != 0) return code;
	while ((code = r->cuStreamQuery(r->stream)) == not_ready)
		if (raw_seconds() - start > timeout) return raw_late;
	*took = raw_seconds() - start;
	return -code;
}

#endif
