// A fake libnccl with the real one's ABI, on the fake libcuda. Ranks are processes or threads that
// map one file. A collective is work on a stream that synchronises with the other ranks' work
// there. It is simple and slow.
//
// Faults (see control.h). RANK is the rank in a communicator; N numbers that rank's calls on it
// from 1:
//
//	version V         result of ncclGetVersion
//	hang RANK N       the call never synchronises with the other ranks
//	refuse RANK N     the call returns ncclInternalError
//	async RANK N      the call never synchronises with the other ranks, and the
//	                  communicator reports ncclRemoteError from then on
//	connect RANK N    the call does not return
//	stay RANK N       the call does not return, not even when it is aborted
//	init RANK         ncclCommInitRankConfig does not return
//	abort RANK        ncclCommAbort does not return
//	unwell RANK       ncclCommAbort works but returns ncclInternalError
//
// Calls that do not return do so when released; with connect, an abort also makes them return. An
// aborted collective sends what its slot holds, like the real NCCL: the peers' calls succeed with
// invalid data.
#define _GNU_SOURCE
#include "control.h"
#include "elements.h"
#include "observe.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

typedef struct context context;
typedef struct stream stream;
extern int cuCtxGetCurrent(context **);
extern int fakegpu_enqueue_kernel(stream *, void (*run)(void *), void *, void (*drop)(void *));
extern int cuMemAlloc_v2(uint64_t *, size_t);
extern int cuMemFree_v2(uint64_t);

enum { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { MAX_RANKS = 8, CHUNK = 64 << 10 };
enum { SUM, PROD, MAX, MIN, AVG, USER }; // from USER on: reductions made by ncclRedOpCreatePreMulSum
enum { MAX_USER = 4 };

typedef struct {
	char path[128];
} unique_id;

typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} config; // its first fields

// Memory that the ranks of a communicator share.
typedef struct {
	atomic_int joined, left;
	atomic_uint_fast64_t arrived[MAX_RANKS]; // number of barriers
	struct {
		atomic_uint_fast64_t wrote, read; // number of chunks
		char data[CHUNK];
	} mail[MAX_RANKS][MAX_RANKS]; // by sender and receiver
	char slot[MAX_RANKS][CHUNK];
} shared;

typedef struct comm {
	shared *sh;
	context *ctx;
	int rank, ranks;
	uint64_t barriers; // used by the stream's thread alone
	int calls;
	atomic_int aborted, async, busy; // busy: number of works that were enqueued, or captured in a graph, and are not dropped
	struct {
		int type; // 0: unused; else the type plus 1
		double factor;
	} user[MAX_USER];
} comm;

static char last_error[256];

// fault reports whether a rank's call has a fault. n is 0 for functions whose calls are not
// numbered.
static int fault(const comm *c, const char *what, int n) {
	return line(what, n > 0 ? 2 : 1, (const long[]){c->rank, n}, 0) != 0;
}

static void hang(comm *c, int until_aborted) {
	while (!released() && !(until_aborted && atomic_load(&c->aborted))) usleep(500);
}

int ncclGetVersion(int *v) {
	*v = setting("version", 22803);
	return SUCCESS;
}

const char *ncclGetErrorString(int code) {
	static const char *const names[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
		"invalid argument", "invalid usage", "remote process exited or there was a network error"};
	return code >= 0 && code <= REMOTE_ERROR ? names[code] : "unknown result code";
}

const char *ncclGetLastError(comm *c) {
	(void)c;
	return last_error;
}

static int fail(int code, const char *why) {
	snprintf(last_error, sizeof last_error, "%s", why);
	return code;
}

int ncclGetUniqueId(unique_id *id) {
	const char *dir = getenv("TMPDIR");
	snprintf(id->path, sizeof id->path, "%s/fakegpu-nccl-XXXXXX", dir != NULL ? dir : "/tmp");
	int fd = mkstemp(id->path);
	if (fd < 0 || ftruncate(fd, sizeof(shared)) != 0) return fail(SYSTEM_ERROR, "no temporary file");
	close(fd);
	return SUCCESS;
}

int ncclCommInitRank(comm **out, int ranks, unique_id id, int rank) {
	context *ctx = NULL;
	cuCtxGetCurrent(&ctx);
	if (ctx == NULL) return fail(CUDA_ERROR, "no context is current");
	if (ranks > MAX_RANKS) return fail(INVALID_ARGUMENT, "too many ranks");
	int fd = open(id.path, O_RDWR);
	if (fd < 0) return fail(SYSTEM_ERROR, "no such communicator");
	comm *c = calloc(1, sizeof *c);
	c->rank = rank, c->ranks = ranks, c->ctx = ctx;
	c->sh = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	*out = c;
	if (fault(c, "init", 0)) {
		hang(c, 0);
		return fail(SYSTEM_ERROR, "released");
	}
	atomic_fetch_add(&c->sh->joined, 1);
	while (atomic_load(&c->sh->joined) < ranks) {
		if (released()) return fail(SYSTEM_ERROR, "released");
		usleep(200);
	}
	if (rank == 0) unlink(id.path);
	return SUCCESS;
}

int ncclCommInitRankConfig(comm **out, int ranks, unique_id id, int rank, config *cfg) {
	if (cfg->magic != 0xcafebeef || cfg->size < sizeof *cfg || cfg->blocking != 1) return fail(INVALID_ARGUMENT, "the configuration");
	return ncclCommInitRank(out, ranks, id, rank);
}

// Enqueued work refers to the communicator, so drain waits for it before it frees the communicator.
// The shared memory exists until the last rank unmaps it.
static void drain(comm *c) {
	while (atomic_load(&c->busy) > 0) usleep(100);
	munmap(c->sh, sizeof(shared));
	free(c);
}

int ncclCommDestroy(comm *c) {
	for (int i = 0; i < MAX_USER; i++)
		if (c->user[i].type != 0) return fail(INVALID_USAGE, "a reduction was not destroyed");
	atomic_fetch_add(&c->sh->left, 1);
	while (atomic_load(&c->sh->left) < c->ranks && !released()) usleep(200);
	drain(c);
	return SUCCESS;
}

int ncclCommAbort(comm *c) {
	atomic_store(&c->aborted, 1);
	if (fault(c, "abort", 0)) hang(c, 0);
	int unwell = fault(c, "unwell", 0);
	drain(c);
	return unwell ? fail(INTERNAL_ERROR, "unwell on request") : SUCCESS;
}

int ncclCommGetAsyncError(comm *c, int *code) {
	*code = atomic_load(&c->async);
	if (*code != SUCCESS) fail(*code, "a connection was closed by rank 9");
	return SUCCESS;
}

int ncclMemAlloc(uint64_t *p, size_t size) {
	int r = cuMemAlloc_v2(p, size);
	return r == 0 ? SUCCESS : fail(CUDA_ERROR, "out of memory");
}
int ncclMemFree(uint64_t p) { return cuMemFree_v2(p) == 0 ? SUCCESS : CUDA_ERROR; }

#define COMBINE(T, name) \
	static T name(int op, T x, T y) { \
		switch (op) { \
		case PROD: return x * y; \
		case MAX: return x > y ? x : y; \
		case MIN: return x < y ? x : y; \
		default: return x + y; \
		} \
	}
COMBINE(double, combine_float)
COMBINE(int64_t, combine_int)

// reduce combines element i of the ranks' slots.
static void reduce(const comm *c, int type, int op, size_t i, char *dst) {
	size_t at = i * sizes[type];
	if (is_float(type)) {
		double v = load_float(type, c->sh->slot[0] + at);
		for (int r = 1; r < c->ranks; r++) v = combine_float(op, v, load_float(type, c->sh->slot[r] + at));
		store_float(type, dst, op == AVG ? v / c->ranks : v);
		return;
	}
	int64_t v = load_int(type, c->sh->slot[0] + at);
	for (int r = 1; r < c->ranks; r++) v = combine_int(op, v, load_int(type, c->sh->slot[r] + at));
	store_int(type, dst, op == AVG ? v / c->ranks : v);
}

enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

typedef struct {
	int kind, type, op, peer;
	const char *src;
	char *dst;
	size_t count;
	int scaled; // multiply by factor before the sum
	double factor;
	size_t at;     // bytes moved so far, of Send and Recv
	uint64_t last; // number of the last chunk, of Send
} operation;

enum { MAX_OPS = 1024 };

typedef struct {
	comm *c;
	int n, hangs;
	operation ops[MAX_OPS];
} batch;

// barrier waits for all ranks. It returns nonzero if the communicator was aborted.
static int barrier(comm *c) {
	uint64_t n = ++c->barriers;
	atomic_store(&c->sh->arrived[c->rank], n);
	for (int r = 0; r < c->ranks; r++)
		while (atomic_load(&c->sh->arrived[r]) < n) {
			if (atomic_load(&c->aborted) || released()) return 1;
			usleep(10);
		}
	return atomic_load(&c->aborted);
}

// give copies n elements to the rank's slot.
static void give(comm *c, const operation *o, size_t from, size_t n) {
	size_t size = sizes[o->type];
	memcpy(c->sh->slot[c->rank], o->src + from * size, n * size);
	for (size_t i = 0; o->scaled && i < n; i++) {
		char *e = c->sh->slot[c->rank] + i * size;
		store_float(o->type, e, load_float(o->type, e) * o->factor);
	}
}

// collective runs piece by piece: every rank fills its slot, and then reads the slots of all ranks.
static int collective(comm *c, operation *o) {
	size_t size = sizes[o->type], most = CHUNK / size;
	size_t total = o->kind == REDUCE_SCATTER ? o->count * c->ranks : o->count;
	for (size_t off = 0; off < total; off += most) {
		size_t n = total - off < most ? total - off : most;
		if (o->kind != BROADCAST || o->peer == c->rank) give(c, o, off, n);
		if (barrier(c)) return 1;
		for (size_t i = 0; i < n; i++) {
			size_t e = off + i;
			switch (o->kind) {
			case ALL_REDUCE: reduce(c, o->type, o->op, i, o->dst + e * size); break;
			case REDUCE:
				if (o->peer == c->rank) reduce(c, o->type, o->op, i, o->dst + e * size);
				break;
			case REDUCE_SCATTER:
				if (e / o->count == (size_t)c->rank) reduce(c, o->type, o->op, i, o->dst + e % o->count * size);
			}
		}
		if (o->kind == BROADCAST) memmove(o->dst + off * size, c->sh->slot[o->peer], n * size);
		for (int r = 0; o->kind == ALL_GATHER && r < c->ranks; r++)
			memcpy(o->dst + (r * o->count + off) * size, c->sh->slot[r], n * size);
		if (barrier(c)) return 1;
	}
	return 0;
}

// step moves at most one chunk of a Send or Recv. It returns nonzero when the operation is done. A
// Send is done when it was received.
static int step(comm *c, operation *o) {
	size_t total = o->count * sizes[o->type], n = total - o->at < CHUNK ? total - o->at : CHUNK;
	int from = o->kind == SEND ? c->rank : o->peer, to = o->kind == SEND ? o->peer : c->rank;
	uint64_t wrote = atomic_load(&c->sh->mail[from][to].wrote), read = atomic_load(&c->sh->mail[from][to].read);
	if (o->kind == SEND && n > 0 && wrote == read) {
		memcpy(c->sh->mail[from][to].data, o->src + o->at, n);
		o->at += n, o->last = wrote + 1;
		atomic_store(&c->sh->mail[from][to].wrote, wrote + 1);
	} else if (o->kind == RECV && n > 0 && wrote > read) {
		memcpy(o->dst + o->at, c->sh->mail[from][to].data, n);
		o->at += n;
		atomic_store(&c->sh->mail[from][to].read, read + 1);
	}
	return o->at == total && (o->kind == RECV || read >= o->last);
}

static void run(void *p) {
	batch copy = *(batch *)p, *b = &copy; // in a graph it runs again
	comm *c = b->c;
	int64_t begin = fakegpu_now();
	int stopped = 0;
	if (b->hangs) hang(c, 1), stopped = 1;
	for (int i = 0; i < b->n && !stopped; i++)
		if (b->ops[i].kind < SEND) stopped = collective(c, &b->ops[i]);
	for (int busy = 1; busy && !stopped; stopped = atomic_load(&c->aborted) || released()) {
		busy = 0;
		// of several operations between the same ranks, the first one runs first
		char taken[2][MAX_RANKS] = {{0}};
		for (int i = 0; i < b->n; i++) {
			operation *o = &b->ops[i];
			char *t = &taken[o->kind == RECV][o->peer];
			if (o->kind < SEND || *t || step(c, o)) continue;
			*t = busy = 1;
		}
		if (busy) usleep(10);
	}
	fakegpu_ran((observed){.kind = OBSERVED_KERNEL, .name = "_Z17ncclDevKernel_Anyv", .begin = begin});
	if (atomic_load(&c->aborted)) atomic_store(&c->sh->arrived[c->rank], UINT64_MAX);
}

static void drop(void *p) {
	batch *b = p;
	atomic_fetch_sub(&b->c->busy, 1);
	free(b);
}

// A group belongs to the thread. Its operations run as one batch, so they must have the same
// communicator and stream.
static _Thread_local int depth, group_error;
static _Thread_local batch *open_batch;
static _Thread_local stream *open_stream;

static int launch(void) {
	batch *b = open_batch;
	open_batch = NULL;
	if (b == NULL) return SUCCESS;
	comm *c = b->c;
	int n = ++c->calls;
	if (group_error != SUCCESS || fault(c, "refuse", n)) {
		free(b);
		return group_error != SUCCESS ? group_error : fail(INTERNAL_ERROR, "refused on request");
	}
	if (fault(c, "connect", n)) {
		atomic_fetch_add(&c->busy, 1); // the abort that makes hang return must not free c
		hang(c, 1);
		atomic_fetch_sub(&c->busy, 1);
		free(b);
		return fail(INTERNAL_ERROR, "aborted while it connected");
	}
	if (fault(c, "stay", n)) {
		hang(c, 0);
		free(b);
		return fail(INTERNAL_ERROR, "released");
	}
	b->hangs = fault(c, "hang", n);
	if (fault(c, "async", n)) {
		b->hangs = 1;
		atomic_store(&c->async, REMOTE_ERROR);
	}
	atomic_fetch_add(&c->busy, 1);
	if (fakegpu_enqueue_kernel(open_stream, run, b, drop) != 0) {
		atomic_fetch_sub(&c->busy, 1);
		free(b);
		return fail(CUDA_ERROR, "the stream's context is not current");
	}
	return SUCCESS;
}

int ncclGroupStart(void) {
	if (depth++ == 0) group_error = SUCCESS;
	return SUCCESS;
}

int ncclGroupEnd(void) {
	if (depth == 0) return fail(INVALID_USAGE, "no group is open on this thread");
	return --depth == 0 ? launch() : SUCCESS;
}

static int add(comm *c, stream *s, operation o) {
	context *ctx = NULL;
	cuCtxGetCurrent(&ctx);
	int bad = SUCCESS;
	if (ctx != c->ctx) bad = fail(CUDA_ERROR, "another context is current");
	else if (atomic_load(&c->aborted)) bad = fail(INVALID_USAGE, "the communicator was aborted");
	else if (o.type < 0 || o.type >= TYPES || o.op < 0 || o.op >= USER + MAX_USER) bad = fail(INVALID_ARGUMENT, "type or reduction");
	else if (o.op >= USER && c->user[o.op - USER].type != o.type + 1) bad = fail(INVALID_ARGUMENT, "no such reduction of that type");
	else if (o.peer < 0 || o.peer >= c->ranks) bad = fail(INVALID_ARGUMENT, "rank");
	else if (open_batch != NULL && (open_batch->n == MAX_OPS || open_batch->c != c || open_stream != s)) bad = fail(INVALID_USAGE, "the group");
	if (bad != SUCCESS) {
		if (depth > 0) group_error = bad;
		return bad;
	}
	if (o.op >= USER) o.scaled = 1, o.factor = c->user[o.op - USER].factor, o.op = SUM;
	if (open_batch == NULL) {
		open_batch = calloc(1, sizeof *open_batch);
		open_batch->c = c;
		open_stream = s;
	}
	open_batch->ops[open_batch->n++] = o;
	if (depth > 0) return SUCCESS;
	group_error = SUCCESS;
	return launch();
}

int ncclRedOpCreatePreMulSum(int *op, const char *scalar, int type, int on_host, comm *c) {
	if (!is_float(type) || type >= TYPES || !on_host) return fail(INVALID_ARGUMENT, "type or place of the factor");
	int i = 0;
	while (i < MAX_USER && c->user[i].type != 0) i++;
	if (i == MAX_USER) return fail(INVALID_USAGE, "too many reductions");
	c->user[i].type = type + 1, c->user[i].factor = load_float(type, scalar);
	*op = USER + i;
	return SUCCESS;
}

int ncclRedOpDestroy(int op, comm *c) {
	if (op < USER || op >= USER + MAX_USER || c->user[op - USER].type == 0) return fail(INVALID_ARGUMENT, "no such reduction");
	c->user[op - USER].type = 0;
	return SUCCESS;
}

int ncclAllReduce(const void *src, void *dst, size_t count, int type, int op, comm *c, stream *s) {
	return add(c, s, (operation){.kind = ALL_REDUCE, .type = type, .op = op, .src = src, .dst = dst, .count = count});
}
int ncclBroadcast(const void *src, void *dst, size_t count, int type, int root, comm *c, stream *s) {
	return add(c, s, (operation){.kind = BROADCAST, .type = type, .peer = root, .src = src, .dst = dst, .count = count});
}
int ncclReduce(const void *src, void *dst, size_t count, int type, int op, int root, comm *c, stream *s) {
	return add(c, s, (operation){.kind = REDUCE, .type = type, .op = op, .peer = root, .src = src, .dst = dst, .count = count});
}
int ncclAllGather(const void *src, void *dst, size_t count, int type, comm *c, stream *s) {
	return add(c, s, (operation){.kind = ALL_GATHER, .type = type, .src = src, .dst = dst, .count = count});
}
int ncclReduceScatter(const void *src, void *dst, size_t count, int type, int op, comm *c, stream *s) {
	return add(c, s, (operation){.kind = REDUCE_SCATTER, .type = type, .op = op, .src = src, .dst = dst, .count = count});
}
int ncclSend(const void *src, size_t count, int type, int peer, comm *c, stream *s) {
	return add(c, s, (operation){.kind = SEND, .type = type, .peer = peer, .src = src, .count = count});
}
int ncclRecv(void *dst, size_t count, int type, int peer, comm *c, stream *s) {
	return add(c, s, (operation){.kind = RECV, .type = type, .peer = peer, .dst = dst, .count = count});
}
