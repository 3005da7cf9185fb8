// A fake libcuda with the functions that this project uses, on host memory. A stream is a thread
// that runs its work in order. If a stream's context is not current on the calling thread, calls
// fail, because the real driver would use another device. Faults (see control.h):
//
//	delay US    a stream sleeps a random time, at most US microseconds, before each work
//	seed N      seed of those times
//	hold        new streams run nothing until released
//	memory N    bytes of all devices together
//	query CODE  result of cuStreamQuery
//	record CODE result of cuEventRecord
//	ipc DEVICE  the device can map memory of other devices of this process
//	pcie DEVICE the device reaches others over PCIe, not NVLink
//	hidden FROM DEVICE  a thread whose context is of the device FROM does not find DEVICE by its bus id
//
// Work on a stream that is being captured becomes a node of a graph, which depends on the stream's
// node before it and on the nodes of the events that the stream waited for. A launched graph runs
// each captured stream's nodes on a thread of its own, so that a missing dependency shows.
#define _GNU_SOURCE
#include "control.h"
#include "elements.h"
#include "observe.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600, NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907 };
enum { MAX_DEVICES = 16 };

typedef struct { int ordinal; } context;

// A work runs once, or as a node of a graph any number of times. drop, which may be NULL, then frees
// its argument.
typedef struct work {
	void (*run)(void *);
	void *arg;
	void (*drop)(void *);
	struct work *next;
	uint32_t correlation; // of the call that enqueued it
} work;

// A set of a graph's nodes, by their numbers.
enum { MAX_NODES = 4096 };
typedef struct { uint64_t bits[MAX_NODES / 64]; } nodes;

// A capture ends with EndCapture on its origin. It is never freed, since events refer to it.
typedef struct capture {
	struct graph *graph;
	struct stream *origin;
	int branches, invalid, ended;
} capture;

typedef struct stream {
	context *ctx;
	pthread_mutex_t mu;
	pthread_cond_t changed;
	work *head, *tail;
	int pending, ended, held;
	unsigned seed, number;

	// Of a stream that is being captured; the thread that captures owns them.
	capture *in;
	int branch;   // the stream's number in the graph; 0 for the origin
	nodes before; // the nodes that the next node depends on directly
} stream;

// An event counts how often it was recorded and how often it was reached, so that a wait refers to
// one recording. Events are never freed, since a wait may still refer to them.
typedef struct {
	atomic_uint_fast64_t recorded, reached;
	atomic_int_fast64_t at; // time in nanoseconds
	capture *in;            // the capture in which it was recorded last; NULL: none
	nodes before;           // in that capture: the nodes before it
} event;

static context contexts[MAX_DEVICES];
static _Thread_local context *current;
static pthread_mutex_t memory_mu = PTHREAD_MUTEX_INITIALIZER;
static size_t memory_used;
static int retained; // number of primary contexts; guarded by memory_mu

static atomic_int failed; // error of a kernel, which all streams return from then on

static size_t memory_total(void) { return setting("memory", 1L << 30); }

int64_t fakegpu_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// The fake libcupti's listener. Each call that enqueues work has a number, its correlation.
static void (*_Atomic listener)(const observed *);
static atomic_uint last_correlation, last_graph;
static _Thread_local uint32_t correlation; // of the caller's call, or of the work that the stream's thread runs
static _Thread_local stream *running;      // the stream of the thread
static _Thread_local uint32_t running_graph; // the graph whose node the thread runs; 0: none

void fakegpu_observe(void (*listen)(const observed *)) { atomic_store(&listener, listen); }

static void report(observed o) {
	void (*listen)(const observed *) = atomic_load(&listener);
	if (listen == NULL) return;
	o.correlation = correlation;
	o.end = fakegpu_now();
	listen(&o);
}

void fakegpu_ran(observed o) {
	o.device = running->ctx->ordinal, o.stream = running->number, o.graph = running_graph;
	report(o);
}

// call begins a call that enqueues work, and called ends it.
static int64_t call(void) {
	correlation = atomic_fetch_add(&last_correlation, 1) + 1;
	return fakegpu_now();
}
static int called(int64_t begin, uint32_t callback, int code) {
	report((observed){.kind = OBSERVED_CALL, .callback = callback, .begin = begin});
	return code;
}

int cuInit(unsigned flags) { return flags == 0 ? OK : INVALID_VALUE; }
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuDeviceGetCount(int *n) { *n = MAX_DEVICES; return OK; }
int cuDeviceGet(int *dev, int ordinal) {
	*dev = ordinal;
	return ordinal >= 0 && ordinal < MAX_DEVICES ? OK : INVALID_DEVICE;
}
int cuDeviceGetPCIBusId(char *id, int size, int dev) {
	snprintf(id, size, "0000:%02X:00.0", dev);
	return OK;
}

int cuDeviceGetByPCIBusId(int *dev, const char *id) {
	unsigned bus;
	if (sscanf(id, "0000:%X:00.0", &bus) != 1 || bus >= MAX_DEVICES) return INVALID_DEVICE;
	if (current != NULL && line("hidden", 2, (const long[]){current->ordinal, bus}, 0)) return INVALID_DEVICE;
	*dev = bus;
	return OK;
}
// Each attribute is 1 over NVLink, else 0.
int cuDeviceGetP2PAttribute(int *v, int which, int from, int to) {
	(void)which;
	*v = from != to && !line("pcie", 1, (const long[]){from}, 0) && !line("pcie", 1, (const long[]){to}, 0);
	return OK;
}

int cuDeviceGetName(char *name, int size, int dev) {
	snprintf(name, size, "fakegpu %d", dev);
	return OK;
}
// Each attribute has its number as value, except for the compute capability, which is 8.0.
int cuDeviceGetAttribute(int *v, int which, int dev) {
	(void)dev;
	*v = which == 75 ? 8 : which == 76 ? 0 : which;
	return OK;
}
int cuGetErrorName(int code, const char **name) {
	*name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_FAKEGPU";
	return OK;
}
int cuGetErrorString(int code, const char **text) {
	(void)code;
	*text = "fakegpu refuses";
	return OK;
}

int cuDevicePrimaryCtxRetain(context **ctx, int dev) {
	contexts[dev].ordinal = dev;
	*ctx = &contexts[dev];
	pthread_mutex_lock(&memory_mu);
	retained++;
	pthread_mutex_unlock(&memory_mu);
	return OK;
}

// When the last context is released, memory that was not freed no longer counts as used. It stays
// allocated, since other threads may still write to it.
int cuDevicePrimaryCtxRelease_v2(int dev) {
	(void)dev;
	pthread_mutex_lock(&memory_mu);
	if (--retained == 0) memory_used = 0;
	pthread_mutex_unlock(&memory_mu);
	return OK;
}
int cuCtxGetCurrent(context **ctx) { *ctx = current; return OK; }
int cuCtxSetCurrent(context *ctx) { current = ctx; return OK; }
int cuCtxGetDevice(int *dev) {
	if (current == NULL) return INVALID_CONTEXT;
	*dev = current->ordinal;
	return OK;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	*least = 0;
	*greatest = -5;
	return current != NULL ? OK : INVALID_CONTEXT;
}

static void *serve(void *p) {
	stream *s = p;
	unsigned most = setting("delay", 0);
	current = s->ctx;
	running = s;
	for (;;) {
		pthread_mutex_lock(&s->mu);
		while (s->head == NULL && !s->ended) pthread_cond_wait(&s->changed, &s->mu);
		work *w = s->head;
		if (w == NULL) { // ended: nothing refers to the stream any more
			pthread_mutex_unlock(&s->mu);
			free(s);
			return NULL;
		}
		s->head = w->next;
		pthread_mutex_unlock(&s->mu);
		while (s->held && !released()) usleep(500);
		if (most > 0) usleep(rand_r(&s->seed) % (most + 1));
		correlation = w->correlation;
		w->run(w->arg);
		if (w->drop != NULL) w->drop(w->arg);
		free(w);
		pthread_mutex_lock(&s->mu);
		s->pending--;
		pthread_mutex_unlock(&s->mu);
	}
}

int cuStreamCreateWithPriority(stream **out, unsigned flags, int priority) {
	(void)flags, (void)priority;
	static atomic_uint streams;
	if (current == NULL) return INVALID_CONTEXT;
	stream *s = calloc(1, sizeof *s);
	s->ctx = current;
	s->held = line("hold", 0, NULL, 0) != 0;
	s->number = atomic_fetch_add(&streams, 1) + 1;
	s->seed = setting("seed", 0) + 7919 * (s->number - 1);
	pthread_mutex_init(&s->mu, NULL);
	pthread_cond_init(&s->changed, NULL);
	pthread_t t;
	pthread_create(&t, NULL, serve, s);
	pthread_detach(t);
	*out = s;
	return OK;
}

int cuStreamDestroy_v2(stream *s) {
	if (current != s->ctx) return INVALID_CONTEXT;
	pthread_mutex_lock(&s->mu);
	s->ended = 1;
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->mu);
	return OK;
}

// invalidate ends a capture by a call that it does not allow.
static int invalidate(capture *c, int code) {
	c->invalid = 1;
	return code;
}

int cuStreamQuery(stream *s) {
	if (s->in != NULL) return invalidate(s->in, CAPTURE_UNSUPPORTED);
	pthread_mutex_lock(&s->mu);
	int pending = s->pending;
	pthread_mutex_unlock(&s->mu);
	if (atomic_load(&failed)) return atomic_load(&failed);
	return setting("query", pending == 0 ? OK : NOT_READY);
}

static int add_node(stream *s, work w);

// Not part of CUDA: enqueues a function. drop, which may be NULL, frees the argument after its last run.
int fakegpu_enqueue(stream *s, void (*run)(void *), void *arg, void (*drop)(void *)) {
	if (current != s->ctx) return INVALID_CONTEXT;
	if (s->in != NULL) return add_node(s, (work){run, arg, drop, NULL, 0});
	work *w = malloc(sizeof *w);
	*w = (work){run, arg, drop, NULL, correlation};
	pthread_mutex_lock(&s->mu);
	if (s->head == NULL) s->head = w;
	else s->tail->next = w;
	s->tail = w;
	s->pending++;
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->mu);
	return OK;
}

// Not part of CUDA: the same for a kernel of another library.
int fakegpu_enqueue_kernel(stream *s, void (*run)(void *), void *arg, void (*drop)(void *)) {
	int64_t begin = call();
	return called(begin, 307, fakegpu_enqueue(s, run, arg, drop));
}


// A module from the fake libnvrtc is a shared library, whose kernels run on the host. Functions of
// other modules do nothing, except for those of comm/internal/nccl's small all-reduce.
static void nothing(void *arg) { (void)arg; }

// Arguments and lines of the small all-reduce.
enum { LINE_BYTES = 8 };

typedef struct {
	uint64_t slots[8], stop, stopped, src, dst, count;
	double scale;
	uint32_t rank, ranks, call, lines;
	uint64_t at, wide, groups;
} small_all_reduce;

typedef struct {
	_Atomic uint32_t number;
	char elements[LINE_BYTES];
} line_of_elements;

static line_of_elements *slot(const small_all_reduce *a, int in, int of) {
	_Static_assert(sizeof(line_of_elements) <= 16, "a line is longer than the kernel's");
	return (line_of_elements *)(uintptr_t)(a->slots[in] + 16 * ((a->call % 2 * a->ranks + of) * (uint64_t)a->lines));
}

// await_line waits until a line has the call's number. It returns 0 if the call was stopped.
static int await_line(const small_all_reduce *a, _Atomic uint32_t *number) {
	while (atomic_load(number) != a->call) {
		if (atomic_load((_Atomic uint32_t *)(uintptr_t)a->stop) || released()) {
			atomic_store((_Atomic uint32_t *)(uintptr_t)a->stopped, 1);
			return 0;
		}
		usleep(20);
	}
	return 1;
}

// Groups of wide lines, each as one line. Every rank owns some, or with two ranks all.
enum { GROUP_BYTES = 480, GROUP_SIZE = 512 };

typedef struct {
	char elements[GROUP_BYTES];
	_Atomic uint32_t number;
} group;

static group *wide_slot(const small_all_reduce *a, int step, int in, int of) {
	_Static_assert(sizeof(group) <= GROUP_SIZE, "a group is longer than the kernel's");
	int steps = a->ranks == 2 ? 1 : 2;
	return (group *)(uintptr_t)(a->slots[in] + a->wide + GROUP_SIZE * (((a->call % 2 * steps + step) * a->ranks + of) * a->groups));
}

static group *nth(group *slot, size_t n) { return (group *)((char *)slot + n * GROUP_SIZE); }

static size_t groups_of(size_t bytes) { return (bytes + GROUP_BYTES - 1) / GROUP_BYTES; }

// Rank r owns the groups from first_of(r) to last_of(r).
static size_t first_of(const small_all_reduce *a, size_t groups, unsigned r) { return a->ranks == 2 ? 0 : groups * r / a->ranks; }
static size_t last_of(const small_all_reduce *a, size_t groups, unsigned r) { return a->ranks == 2 ? groups : groups * (r + 1) / a->ranks; }

// size_of returns the size of group g of a call.
static size_t size_of(size_t bytes, size_t g) { return bytes - g * GROUP_BYTES < GROUP_BYTES ? bytes - g * GROUP_BYTES : GROUP_BYTES; }

static void run_wide_all_reduce(const small_all_reduce *args, int type) {
	small_all_reduce copy = *args, *a = &copy;
	if (a->at != 0) a->call = *(uint64_t *)(uintptr_t)a->at;
	size_t bytes = a->count * sizes[type], groups = groups_of(bytes);
	char *src = (char *)(uintptr_t)a->src, *dst = (char *)(uintptr_t)a->dst;
	if (atomic_load((_Atomic uint32_t *)(uintptr_t)a->stopped)) return;
	for (unsigned to = 0; to < a->ranks; to++) {
		size_t first = first_of(a, groups, to), last = last_of(a, groups, to);
		for (size_t g = first; g < last && to != a->rank; g++) {
			group *l = nth(wide_slot(a, 0, to, a->rank), g - first);
			memcpy(l->elements, src + g * GROUP_BYTES, size_of(bytes, g));
			atomic_store(&l->number, a->call);
		}
	}
	size_t first = first_of(a, groups, a->rank), last = last_of(a, groups, a->rank);
	for (size_t g = first; g < last; g++) {
		char sums[GROUP_BYTES];
		for (size_t i = 0; i < size_of(bytes, g); i += sizes[type]) {
			double sum = 0;
			for (unsigned r = 0; r < a->ranks; r++) {
				group *l = nth(wide_slot(a, 0, a->rank, r), g - first);
				if (r != a->rank && !await_line(a, &l->number)) return;
				sum += load_float(type, (r == a->rank ? src + g * GROUP_BYTES : l->elements) + i);
			}
			store_float(type, sums + i, sum * a->scale);
		}
		memcpy(dst + g * GROUP_BYTES, sums, size_of(bytes, g));
		for (unsigned to = 0; to < a->ranks && a->ranks > 2; to++) {
			if (to == a->rank) continue;
			group *l = nth(wide_slot(a, 1, to, a->rank), g - first);
			memcpy(l->elements, sums, size_of(bytes, g));
			atomic_store(&l->number, a->call);
		}
	}
	for (unsigned of = 0; of < a->ranks && a->ranks > 2; of++) {
		size_t first = first_of(a, groups, of), last = last_of(a, groups, of);
		for (size_t g = first; g < last && of != a->rank; g++) {
			group *l = nth(wide_slot(a, 1, a->rank, of), g - first);
			if (!await_line(a, &l->number)) return;
			memcpy(dst + g * GROUP_BYTES, l->elements, size_of(bytes, g));
		}
	}
}

static void run_small_all_reduce(const small_all_reduce *args, int type) {
	small_all_reduce copy = *args, *a = &copy;
	if (a->at != 0) a->call = *(uint64_t *)(uintptr_t)a->at;
	size_t each = LINE_BYTES / sizes[type];
	if (atomic_load((_Atomic uint32_t *)(uintptr_t)a->stopped)) return;
	for (size_t i = 0; i * each < a->count; i++) {
		size_t n = a->count - i * each < each ? a->count - i * each : each;
		for (unsigned r = 0; r < a->ranks; r++) {
			if (r == a->rank) continue;
			line_of_elements *l = slot(a, r, a->rank) + i;
			memcpy(l->elements, (char *)(uintptr_t)a->src + i * LINE_BYTES, n * sizes[type]);
			atomic_store(&l->number, a->call);
		}
	}
	for (size_t i = 0; i < a->count; i++) {
		double sum = 0;
		for (unsigned r = 0; r < a->ranks; r++) {
			if (r == a->rank) {
				sum += load_float(type, (char *)(uintptr_t)a->src + i * sizes[type]);
				continue;
			}
			line_of_elements *l = slot(a, a->rank, r) + i / each;
			if (!await_line(a, &l->number)) return;
			sum += load_float(type, l->elements + i % each * sizes[type]);
		}
		store_float(type, (char *)(uintptr_t)a->dst + i * sizes[type], sum * a->scale);
	}
}

typedef struct { unsigned x, y, z; } dim3;

typedef struct {
	void *library; // NULL: not from the fake libnvrtc
	int (*launch)(void *kernel, const char *name, dim3 grid, dim3 threads, const void *args, size_t size);
} module;

typedef struct {
	char name[64];
	int type;     // element type of a small all-reduce, else -1
	int wide;     // it has wide lines
	void *kernel; // function of the module's library, or NULL
	module *in;
} function;

typedef struct {
	function *f;
	dim3 grid, threads;
	size_t size;
	max_align_t args[];
} launch;

// Kernels of a library share its variables, so one runs at a time.
static pthread_mutex_t kernel_mu = PTHREAD_MUTEX_INITIALIZER;
static void run_launch(void *arg) {
	launch *l = arg;
	int64_t begin = fakegpu_now();
	if (l->f->type >= 0) (l->f->wide ? run_wide_all_reduce : run_small_all_reduce)((small_all_reduce *)l->args, l->f->type);
	if (l->f->kernel != NULL) {
		pthread_mutex_lock(&kernel_mu);
		int code = l->f->in->launch(l->f->kernel, l->f->name, l->grid, l->threads, l->args, l->size);
		pthread_mutex_unlock(&kernel_mu);
		if (code != OK) atomic_store(&failed, code);
	}
	fakegpu_ran((observed){.kind = OBSERVED_KERNEL, .name = l->f->name, .begin = begin});
}

int cuModuleLoadData(module **out, const void *image) {
	static const char elf[] = "\177ELF";
	if (current == NULL || image == NULL) return INVALID_VALUE;
	module *m = *out = calloc(1, sizeof *m);
	if (memcmp(image, elf, 4) != 0) return OK;
	// The ELF header says where the section table is, with which the file ends.
	const char *head = image;
	size_t size = *(uint64_t *)(head + 40) + (size_t)*(uint16_t *)(head + 58) * *(uint16_t *)(head + 60);
	char path[] = "/tmp/fakegpu-kernels-XXXXXX";
	int fd = mkstemp(path);
	if (fd < 0) return INVALID_VALUE;
	int whole = write(fd, image, size) == (ssize_t)size;
	close(fd);
	if (whole) m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	unlink(path);
	if (m->library == NULL) {
		fprintf(stderr, "fakegpu: loading kernels: %s\n", whole ? dlerror() : "cannot write them");
		return INVALID_VALUE;
	}
	m->launch = dlsym(m->library, "fakegpu_launch");
	return m->launch != NULL ? OK : INVALID_VALUE;
}
int cuModuleUnload(module *m) {
	if (m->library != NULL) dlclose(m->library);
	free(m);
	return current != NULL ? OK : INVALID_CONTEXT;
}
int cuModuleGetFunction(function **out, module *m, const char *name) {
	static const char *const types[TYPES] = {[FLOAT32] = "float32", [FLOAT64] = "float64", [FLOAT16] = "float16", [BFLOAT16] = "bfloat16"};
	static const char small[] = "small_all_reduce_", wide[] = "wide_";
	enum { NOT_FOUND = 500 };
	if (name == NULL || strlen(name) >= sizeof (*out)->name) return INVALID_VALUE;
	function *f = *out = calloc(1, sizeof *f); // never freed
	strcpy(f->name, name);
	f->in = m;
	f->type = -1;
	if (strncmp(name, small, strlen(small)) == 0) {
		const char *rest = name + strlen(small);
		f->wide = strncmp(rest, wide, strlen(wide)) == 0;
		if (f->wide) rest += strlen(wide);
		for (int t = 0; t < TYPES; t++)
			if (types[t] != NULL && strcmp(types[t], rest) == 0) f->type = t;
	}
	if (f->type < 0 && m->library != NULL) {
		f->kernel = dlsym(m->library, name);
		if (f->kernel == NULL) return NOT_FOUND;
	}
	return OK;
}
int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		unsigned shared, stream *s, void **params, void **extra) {
	(void)shared, (void)params;
	if (f == NULL) return fakegpu_enqueue(s, nothing, NULL, NULL);
	if (gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID_VALUE;
	size_t size = *(size_t *)extra[3];
	if (f->type >= 0 && size != sizeof(small_all_reduce)) return INVALID_VALUE;
	launch *l = malloc(sizeof *l + size);
	*l = (launch){f, {gx, gy, gz}, {bx, by, bz}, size};
	memcpy(l->args, extra[1], size);
	return fakegpu_enqueue_kernel(s, run_launch, l, free);
}

// cuLaunchKernelEx is not needed: kernels start early from compute capability 9.0 on.
int cuLaunchKernelEx(const void *config, function *f, void **params, void **extra) {
	(void)config, (void)f, (void)params, (void)extra;
	return INVALID_VALUE;
}

// A graph's nodes, in the order of their capture, which is one in which they may run. The graph and
// the executables made from it share it.
typedef struct { work work; int branch; nodes before; } node;

typedef struct graph {
	atomic_int users;
	int n, branches;
	node *nodes;
} graph;

static void release(graph *g) {
	if (atomic_fetch_sub(&g->users, 1) > 1) return;
	for (int i = 0; i < g->n; i++)
		if (g->nodes[i].work.drop != NULL) g->nodes[i].work.drop(g->nodes[i].work.arg);
	free(g->nodes);
	free(g);
}

static void unite(nodes *to, const nodes *from) {
	for (int i = 0; i < MAX_NODES / 64; i++) to->bits[i] |= from->bits[i];
}
static int contains(const nodes *all, int i) { return all->bits[i / 64] >> i % 64 & 1; }

static int add_node(stream *s, work w) {
	graph *g = s->in->graph;
	if (g->n == MAX_NODES) return invalidate(s->in, CAPTURE_UNSUPPORTED);
	g->nodes = realloc(g->nodes, (g->n + 1) * sizeof *g->nodes);
	g->nodes[g->n] = (node){w, s->branch, s->before};
	s->before = (nodes){{0}};
	s->before.bits[g->n / 64] = 1ull << g->n % 64;
	g->n++;
	return OK;
}

// The streams of captures, guarded by streams_mu.
static pthread_mutex_t streams_mu = PTHREAD_MUTEX_INITIALIZER;
enum { MAX_CAPTURED = 64 };
static stream *captured[MAX_CAPTURED];

static void begin(stream *s, capture *c) {
	pthread_mutex_lock(&streams_mu);
	int i = 0;
	while (captured[i] != NULL) i++;
	captured[i] = s;
	pthread_mutex_unlock(&streams_mu);
	s->in = c;
	s->branch = c->branches++;
	s->before = (nodes){{0}};
}

static int join_capture(stream *s, event *e) {
	if (s->in == NULL) begin(s, e->in);
	unite(&s->before, &e->before);
	return OK;
}

// The mode is CU_STREAM_CAPTURE_MODE_RELAXED: the fake has no calls that only other modes forbid.
int cuStreamBeginCapture_v2(stream *s, int mode) {
	enum { RELAXED = 2 };
	if (current != s->ctx) return INVALID_CONTEXT;
	if (mode != RELAXED || s->in != NULL) return INVALID_VALUE;
	capture *c = calloc(1, sizeof *c);
	c->origin = s;
	c->graph = calloc(1, sizeof *c->graph);
	c->graph->users = 1;
	begin(s, c);
	return OK;
}

int cuStreamIsCapturing(stream *s, int *status) {
	enum { NONE, ACTIVE, INVALIDATED };
	*status = s->in == NULL ? NONE : s->in->invalid ? INVALIDATED : ACTIVE;
	return current == s->ctx ? OK : INVALID_CONTEXT;
}

int cuStreamEndCapture(stream *s, graph **out) {
	capture *c = s->in;
	if (c == NULL || c->origin != s) return CAPTURE_UNMATCHED;
	graph *g = c->graph;
	// Every node must be before the end of the origin.
	nodes joined = s->before;
	for (int i = g->n - 1; i >= 0; i--)
		if (contains(&joined, i)) unite(&joined, &g->nodes[i].before);
	int code = c->invalid ? CAPTURE_INVALIDATED : OK;
	for (int i = 0; i < g->n && code == OK; i++)
		if (!contains(&joined, i)) code = CAPTURE_UNJOINED;
	pthread_mutex_lock(&streams_mu);
	for (int i = 0; i < MAX_CAPTURED; i++)
		if (captured[i] != NULL && captured[i]->in == c) captured[i]->in = NULL, captured[i] = NULL;
	pthread_mutex_unlock(&streams_mu);
	c->ended = 1;
	g->branches = c->branches;
	*out = code == OK ? g : NULL;
	if (code != OK) release(g);
	return code;
}

int cuGraphDestroy(graph *g) {
	release(g);
	return OK;
}

// An executable runs the nodes of branch 0 on the stream that it is launched on, and those of other
// branches on streams of its own. A node is done in launch n when done[node] is n.
typedef struct executable {
	graph *g;
	atomic_int users; // the program, and launches in flight
	uint32_t number;
	stream **branches;
	atomic_uint_fast64_t *done, launched, started;
} executable;

int cuStreamCreateWithPriority(stream **out, unsigned flags, int priority);
int cuStreamDestroy_v2(stream *s);

int cuGraphInstantiateWithFlags(executable **out, graph *g, unsigned long long flags) {
	if (flags != 0) return INVALID_VALUE;
	executable *x = *out = calloc(1, sizeof *x);
	x->g = g;
	atomic_fetch_add(&g->users, 1);
	x->users = 1;
	x->number = atomic_fetch_add(&last_graph, 1) + 1;
	x->done = calloc(g->n + 1, sizeof *x->done);
	x->branches = calloc(g->branches, sizeof *x->branches);
	for (int b = 1; b < g->branches; b++) {
		int code = cuStreamCreateWithPriority(&x->branches[b], 0, 0);
		if (code != OK) return code;
	}
	return OK;
}

static void leave(executable *x) {
	if (atomic_fetch_sub(&x->users, 1) > 1) return;
	for (int b = 1; b < x->g->branches; b++) {
		context *was = current;
		current = x->branches[b]->ctx;
		cuStreamDestroy_v2(x->branches[b]);
		current = was;
	}
	release(x->g);
	free(x->branches);
	free(x->done);
	free(x);
}

int cuGraphExecDestroy(executable *x) {
	leave(x);
	return OK;
}

typedef struct { executable *x; int node; uint64_t launch; } turn; // node -1: the launch begins; g->n: it ends

static void take_turn(void *p) {
	turn *t = p;
	executable *x = t->x;
	if (t->node < 0) {
		atomic_store(&x->started, t->launch);
		return;
	}
	while (atomic_load(&x->started) < t->launch) usleep(20);
	for (int i = 0; i < t->node; i++)
		while ((t->node == x->g->n || contains(&x->g->nodes[t->node].before, i)) && atomic_load(&x->done[i]) < t->launch) usleep(20);
	if (t->node < x->g->n) {
		work *w = &x->g->nodes[t->node].work;
		running_graph = x->number;
		w->run(w->arg);
		running_graph = 0;
	}
	atomic_store(&x->done[t->node], t->launch);
}

static void drop_turn(void *p) {
	leave(((turn *)p)->x);
	free(p);
}

int cuGraphLaunch(executable *x, stream *s) {
	if (current != s->ctx) return INVALID_CONTEXT;
	if (s->in != NULL) return invalidate(s->in, CAPTURE_UNSUPPORTED);
	uint64_t launch = atomic_fetch_add(&x->launched, 1) + 1;
	int64_t begin = call();
	for (int i = -1; i <= x->g->n; i++) {
		turn *t = malloc(sizeof *t);
		*t = (turn){x, i, launch};
		atomic_fetch_add(&x->users, 1);
		int branch = i >= 0 && i < x->g->n ? x->g->nodes[i].branch : 0;
		int code = fakegpu_enqueue(branch == 0 ? s : x->branches[branch], take_turn, t, drop_turn);
		if (code != OK) return code;
	}
	return called(begin, 514, OK);
}

typedef struct {
	event *e;
	uint64_t count;
} mark;

static mark *new_mark(event *e, uint64_t count) {
	mark *m = malloc(sizeof *m);
	*m = (mark){e, count};
	return m;
}

static void reach(void *p) {
	mark *m = p;
	atomic_store(&m->e->at, fakegpu_now());
	atomic_store(&m->e->reached, m->count);
}

static void await(void *p) {
	mark *m = p;
	while (atomic_load(&m->e->reached) < m->count) usleep(20);
}

int cuEventCreate(event **e, unsigned flags) {
	(void)flags;
	if (current == NULL) return INVALID_CONTEXT;
	*e = calloc(1, sizeof **e);
	return OK;
}
int cuEventDestroy_v2(event *e) { (void)e; return OK; }
int cuEventRecord(event *e, stream *s) {
	long code = setting("record", OK);
	if (code != OK) return code;
	e->in = s->in;
	if (s->in != NULL) {
		e->before = s->before;
		return OK;
	}
	return fakegpu_enqueue(s, reach, new_mark(e, atomic_fetch_add(&e->recorded, 1) + 1), free);
}
int cuEventQuery(event *e) {
	if (e->in != NULL) return e->in->ended ? CAPTURED_EVENT : invalidate(e->in, CAPTURED_EVENT);
	return atomic_load(&e->reached) >= atomic_load(&e->recorded) ? OK : NOT_READY;
}
int cuStreamWaitEvent(stream *s, event *e, unsigned flags) {
	(void)flags;
	if (e->in == NULL && s->in != NULL) return invalidate(s->in, CAPTURE_ISOLATION);
	if (e->in == NULL) return fakegpu_enqueue(s, await, new_mark(e, atomic_load(&e->recorded)), free);
	if (e->in->ended || (s->in != NULL && s->in != e->in)) return CAPTURED_EVENT;
	return join_capture(s, e);
}
int cuEventElapsedTime(float *ms, event *from, event *to) {
	*ms = (atomic_load(&to->at) - atomic_load(&from->at)) / 1e6f;
	return OK;
}
// Not part of CUDA: when an event was reached, in nanoseconds since 1970.
int64_t fakegpu_event_time(event *e) { return atomic_load(&e->at); }

int cuMemGetInfo_v2(size_t *free, size_t *total) {
	if (current == NULL) return INVALID_CONTEXT;
	pthread_mutex_lock(&memory_mu);
	*total = memory_total();
	*free = memory_used < *total ? *total - memory_used : 0;
	pthread_mutex_unlock(&memory_mu);
	return OK;
}

// An allocation begins with this header. Its contents are set to values that look like counters,
// because a GPU's memory is not zeroed either.
typedef struct {
	size_t size;
	atomic_int maps; // mappings by other devices
} memory;

enum { HEAD = 256 };
static memory *head(uint64_t p) { return (memory *)((char *)(uintptr_t)p - HEAD); }

int cuMemAlloc_v2(uint64_t *p, size_t size) {
	if (current == NULL) return INVALID_CONTEXT;
	if (size == 0) return INVALID_VALUE;
	pthread_mutex_lock(&memory_mu);
	int fits = memory_used + size <= memory_total();
	if (fits) memory_used += size;
	pthread_mutex_unlock(&memory_mu);
	if (!fits) return OUT_OF_MEMORY;
	uint32_t *mem = aligned_alloc(HEAD, HEAD + (size + HEAD - 1) / HEAD * HEAD);
	for (size_t i = 0; i < (HEAD + size) / sizeof *mem; i++) mem[i] = i / 4 % 3 + 1;
	*p = (uintptr_t)mem + HEAD;
	*head(*p) = (memory){.size = size};
	return OK;
}
int cuMemFree_v2(uint64_t p) {
	if (current == NULL) return INVALID_CONTEXT;
	if (atomic_load(&head(p)->maps) != 0) return INVALID_VALUE;
	pthread_mutex_lock(&memory_mu);
	memory_used -= head(p)->size < memory_used ? head(p)->size : memory_used;
	pthread_mutex_unlock(&memory_mu);
	free(head(p));
	return OK;
}

// A handle holds the process and the address.
typedef struct {
	long pid;
	uint64_t p;
	char rest[48];
} ipc_handle;

int cuIpcGetMemHandle(ipc_handle *h, uint64_t p) {
	*h = (ipc_handle){.pid = getpid(), .p = p};
	return current != NULL ? OK : INVALID_CONTEXT;
}
int cuIpcOpenMemHandle_v2(uint64_t *p, ipc_handle h, unsigned flags) {
	if (current == NULL || flags != 1) return INVALID_CONTEXT;
	if (h.pid != getpid() || !line("ipc", 1, (const long[]){current->ordinal}, 0)) return NOT_SUPPORTED;
	*p = h.p;
	atomic_fetch_add(&head(h.p)->maps, 1);
	return OK;
}
int cuIpcCloseMemHandle(uint64_t p) {
	if (current == NULL) return INVALID_CONTEXT;
	atomic_fetch_sub(&head(p)->maps, 1);
	return OK;
}

int cuMemHostAlloc(void **p, size_t size, unsigned flags) {
	(void)flags;
	if (current == NULL) return INVALID_CONTEXT;
	*p = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
	return *p != NULL ? OK : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *p) {
	free(p);
	return current != NULL ? OK : INVALID_CONTEXT;
}

typedef struct {
	void *dst;
	const void *src; // NULL: set to zero
	size_t size;
	int owned; // src is a copy that was made for the call
	uint8_t direction;
} transfer;

enum { CLEAR = 0, HTOD = 1, DTOH = 2, DTOD = 8 }; // CUPTI's numbers of directions

static void move(void *p) {
	transfer *t = p;
	int64_t begin = fakegpu_now();
	if (t->src != NULL) memcpy(t->dst, t->src, t->size);
	else memset(t->dst, 0, t->size);
	fakegpu_ran((observed){.kind = t->direction == CLEAR ? OBSERVED_CLEAR : OBSERVED_COPY, .direction = t->direction, .bytes = t->size, .begin = begin});
}
static void drop_transfer(void *p) {
	transfer *t = p;
	if (t->owned) free((void *)t->src);
	free(t);
}

static int enqueue_move(void *dst, const void *src, size_t size, int owned, uint8_t direction, stream *s) {
	static const uint32_t callbacks[] = {[CLEAR] = 216, [HTOD] = 277, [DTOH] = 279, [DTOD] = 281};
	int64_t begin = call();
	transfer *t = malloc(sizeof *t);
	*t = (transfer){dst, src, size, owned, direction};
	return called(begin, callbacks[direction], fakegpu_enqueue(s, move, t, drop_transfer));
}

// Host memory is copied before the call returns, as CUDA does for small copies of pageable memory.
// Page-locked memory is treated in the same way, unless the copy is captured.
int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t size, stream *s) {
	if (s->in != NULL) return enqueue_move((void *)(uintptr_t)dst, src, size, 0, HTOD, s);
	void *copy = malloc(size + 1);
	memcpy(copy, src, size);
	return enqueue_move((void *)(uintptr_t)dst, copy, size, 1, HTOD, s);
}
int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t size, stream *s) {
	return enqueue_move(dst, (void *)(uintptr_t)src, size, 0, DTOH, s);
}
int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t size, stream *s) {
	return enqueue_move((void *)(uintptr_t)dst, (void *)(uintptr_t)src, size, 0, DTOD, s);
}
int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t size, stream *s) {
	return value == 0 ? enqueue_move((void *)(uintptr_t)dst, NULL, size, 0, CLEAR, s) : INVALID_VALUE;
}
