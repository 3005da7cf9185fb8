// A fake libcudnn with the part of the backend API that builds and runs graphs of operations. It
// computes a graph operation by operation, in double, and rounds each result to its type. Like
// cuDNN, it refuses a descriptor whose attributes are missing, of the wrong type or not finalized, an
// operand that no earlier operation computes, and heads whose size is not a multiple of 8 or larger
// than 256. For a convolution it first proposes an engine that adds in any order, whose results are wrong,
// so that a test notices its use. Faults (see control.h):
//
//	cudnn_refuse  no graph is supported
//	cudnn_wrong   the results are wrong
#include "control.h"
#include "elements.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

enum { OK = 0, BAD_PARAM = 2000, NOT_FINALIZED = 2003, BAD_TYPE = 2010, NOT_SUPPORTED = 3000 };
enum { POINTWISE, CONV, ENGINE, CONFIG, HEURISTIC, PLAN, CONV_FORWARD = 10, CONV_FILTER, CONV_DATA, POINTWISE_OP, GRAPH = 15, PACK = 16, TENSOR = 17, MATMUL = 18, MATMUL_OP = 19,
	REDUCTION = 21, REDUCTION_OP = 22, RESHAPE_OP = 31 };
enum { PW_MODE = 0, PW_MATH = 1, PW_AXIS = 9, CONV_MATH = 100, CONV_MODE, CONV_DILATIONS, CONV_STRIDES, CONV_POST, CONV_PRE, CONV_AXES, HEUR_MODE = 200, HEUR_GRAPH = 201, HEUR_RESULTS = 202, CONFIG_ENGINE = 300,
	PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402,
	FORWARD_ALPHA = 700, FORWARD_BETA, FORWARD_DESC, FORWARD_W, FORWARD_X, FORWARD_Y, DATA_ALPHA, DATA_BETA, DATA_DESC, DATA_W, DATA_X, DATA_Y,
	FILTER_ALPHA, FILTER_BETA, FILTER_DESC, FILTER_W, FILTER_X, FILTER_Y, PW_DESC = 750, PW_X = 751, PW_B = 752, PW_Y = 753, PW_T = 758,
	GRAPH_HANDLE = 800, GRAPH_OPS = 801, T_ALIGN = 900, T_TYPE = 901, T_DIMS = 902, T_STRIDES = 903, T_ID = 906, T_VIRTUAL = 907, T_VALUE = 908,
	PACK_IDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003, ENGINE_NOTES = 1303, MM_MATH = 1500, MM_A = 1520, MM_B, MM_C, MM_DESC,
	RED_MODE = 1600, RED_MATH = 1601, RED_X = 1610, RED_Y, RED_DESC, RESHAPE_X = 2200, RESHAPE_Y };
enum { HANDLE_T, DATA_T, BOOL_T, INT64_T, FLOAT_T, POINTER_T = 6, CONV_T, HEUR_T, NOTE_T = 11, MODE_T = 14, DESC_T = 15, REDUCE_T = 18 };
enum { ADD = 0, MUL = 1, DIV = 6, SUB = 9, EXP = 13, LOG = 15, IDENTITY = 21, GE = 303, INDEX = 501, SELECT = 601, SUM = 0, MAX = 3 };
enum { NONDETERMINISTIC = 4 };

int fakegpu_enqueue(void *stream, void (*run)(void *), void *arg, void (*drop)(void *));

typedef struct { void *stream; } handle;

// desc is any descriptor. Its attributes are kept as they were set.
typedef struct desc desc;
struct desc {
	int kind, finalized, count, unordered; // unordered: an engine, or its configuration, that adds in any order
	struct { int name, type; int64_t n; void *v; } attrs[16];
	atomic_int refers; // by how many attributes, so that a plan keeps its graph
};

static _Thread_local char said[256];
static int fail(int status, const char *text) {
	snprintf(said, sizeof said, "%s", text);
	return status;
}

size_t cudnnGetVersion(void) { return 91900; }
const char *cudnnGetErrorString(int status) {
	return status == OK ? "CUDNN_STATUS_SUCCESS" : status >= 3000 ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "%s", said); }
int cudnnCreate(handle **h) { return *h = calloc(1, sizeof **h), OK; }
int cudnnDestroy(handle *h) { return free(h), OK; }
int cudnnSetStream(handle *h, void *stream) { return h->stream = stream, OK; }

int cudnnBackendCreateDescriptor(int kind, desc **d) {
	*d = calloc(1, sizeof **d);
	(*d)->kind = kind;
	return OK;
}

static void drop(desc *d) {
	if (d->refers-- > 0) return;
	for (int i = 0; i < d->count; i++) {
		if (d->attrs[i].type == DESC_T)
			for (int64_t j = 0; j < d->attrs[i].n; j++) drop(((desc **)d->attrs[i].v)[j]);
		free(d->attrs[i].v);
	}
	free(d);
}
int cudnnBackendDestroyDescriptor(desc *d) { return drop(d), OK; }

static size_t width(int type) {
	switch (type) {
	case BOOL_T: return 1;
	case DATA_T: case FLOAT_T: case CONV_T: case HEUR_T: case NOTE_T: case MODE_T: case REDUCE_T: return 4;
	}
	return 8;
}

// type_of is the type of an attribute.
static int type_of(int name) {
	switch (name) {
	case PW_MODE: return MODE_T;
	case PW_MATH: case T_TYPE: case MM_MATH: case RED_MATH: case CONV_MATH: return DATA_T;
	case CONV_MODE: return CONV_T;
	case HEUR_MODE: return HEUR_T;
	case GRAPH_HANDLE: case PLAN_HANDLE: return HANDLE_T;
	case CONV_DILATIONS: case CONV_STRIDES: case CONV_POST: case CONV_PRE: case CONV_AXES:
	case PW_AXIS: case T_ALIGN: case T_DIMS: case T_STRIDES: case T_ID: case PACK_IDS: return INT64_T;
	case T_VIRTUAL: case T_VALUE: return BOOL_T;
	case FORWARD_ALPHA: case FORWARD_BETA: case DATA_ALPHA: case DATA_BETA: case FILTER_ALPHA: case FILTER_BETA:
	case 754: case 755: return FLOAT_T;
	case PACK_POINTERS: case PACK_WORKSPACE: return POINTER_T;
	case RED_MODE: return REDUCE_T;
	}
	return DESC_T;
}

int cudnnBackendSetAttribute(desc *d, int name, int type, int64_t n, const void *v) {
	if (d->finalized) return fail(BAD_PARAM, "the descriptor is finalized");
	if (type != type_of(name)) return fail(BAD_TYPE, "an attribute of another type");
	if (type == DESC_T)
		for (int64_t i = 0; i < n; i++) {
			if (!((desc *const *)v)[i]->finalized) return fail(NOT_FINALIZED, "an attribute is not finalized");
			((desc *const *)v)[i]->refers++;
		}
	void *copy = malloc(n * width(type));
	memcpy(copy, v, n * width(type));
	d->attrs[d->count].name = name, d->attrs[d->count].type = type, d->attrs[d->count].n = n, d->attrs[d->count].v = copy;
	d->count++;
	return OK;
}

// get returns an attribute, or null.
static void *get(const desc *d, int name, int64_t *n) {
	for (int i = 0; i < d->count; i++)
		if (d->attrs[i].name == name) {
			if (n) *n = d->attrs[i].n;
			return d->attrs[i].v;
		}
	return NULL;
}
static desc *get_desc(const desc *d, int name) {
	desc **v = get(d, name, NULL);
	return v ? *v : NULL;
}
static int get_enum(const desc *d, int name) { return *(int *)get(d, name, NULL); }
static int get_bool(const desc *d, int name) {
	const char *v = get(d, name, NULL);
	return v && *v;
}
static int64_t id_of(const desc *t) { return *(int64_t *)get(t, T_ID, NULL); }
static const int64_t *dims_of(const desc *t) { return get(t, T_DIMS, NULL); }
static const int64_t *strides_of(const desc *t) { return get(t, T_STRIDES, NULL); }

static int element(const desc *t) {
	switch (get_enum(t, T_TYPE)) {
	case 0: return FLOAT32;
	case 2: return FLOAT16;
	case 4: return INT32;
	case 9: return BFLOAT16;
	case 11: return UINT8;
	}
	return TYPES;
}

static int has_all(const desc *d, const int *names) {
	for (; *names >= 0; names++)
		if (!get(d, *names, NULL)) return 0;
	return 1;
}
#define NEED(...) if (!has_all(d, (const int[]){__VA_ARGS__, -1})) return fail(BAD_PARAM, "an attribute is missing")

// The operands and the result of an operation.
static int inputs(const desc *op, desc **in) {
	int n = 0;
	switch (op->kind) {
	case MATMUL_OP: in[n++] = get_desc(op, MM_A), in[n++] = get_desc(op, MM_B); break;
	case REDUCTION_OP: in[n++] = get_desc(op, RED_X); break;
	case RESHAPE_OP: in[n++] = get_desc(op, RESHAPE_X); break;
	case CONV_FORWARD: in[n++] = get_desc(op, FORWARD_X), in[n++] = get_desc(op, FORWARD_W); break;
	case CONV_DATA: in[n++] = get_desc(op, DATA_W), in[n++] = get_desc(op, DATA_Y); break;
	case CONV_FILTER: in[n++] = get_desc(op, FILTER_X), in[n++] = get_desc(op, FILTER_Y); break;
	case POINTWISE_OP:
		in[n++] = get_desc(op, PW_X);
		if (get_desc(op, PW_B)) in[n++] = get_desc(op, PW_B);
		if (get_desc(op, PW_T)) in[n++] = get_desc(op, PW_T);
	}
	return n;
}
static desc *output(const desc *op) {
	switch (op->kind) {
	case MATMUL_OP: return get_desc(op, MM_C);
	case REDUCTION_OP: return get_desc(op, RED_Y);
	case RESHAPE_OP: return get_desc(op, RESHAPE_Y);
	case CONV_FORWARD: return get_desc(op, FORWARD_Y);
	case CONV_DATA: return get_desc(op, DATA_X);
	case CONV_FILTER: return get_desc(op, FILTER_W);
	}
	return get_desc(op, PW_Y);
}

static int is_convolution(const desc *op) { return op->kind >= CONV_FORWARD && op->kind <= CONV_DATA; }

static int ports(int mode) { return mode == SELECT ? 3 : mode == EXP || mode == LOG || mode == IDENTITY || mode == INDEX ? 1 : 2; }

static int check_graph(const desc *d) {
	int64_t n;
	desc **ops = get(d, GRAPH_OPS, &n);
	for (int64_t i = 0; i < n; i++) {
		desc *in[3];
		for (int j = inputs(ops[i], in) - 1; j >= 0; j--) {
			int known = !get_bool(in[j], T_VIRTUAL);
			for (int64_t k = 0; k < i; k++) known |= output(ops[k]) == in[j];
			if (!known) return fail(BAD_PARAM, "no earlier operation computes an operand");
		}
		if (get_bool(output(ops[i]), T_VALUE)) return fail(BAD_PARAM, "a result is a number on the host");
	}
	if (setting("cudnn_refuse", 0)) return fail(NOT_SUPPORTED, "a test wants no graph to be supported");
	if (is_convolution(ops[n - 1])) return OK;
	const int64_t *last = dims_of(get_desc(ops[n - 1], ops[n - 1]->kind == MATMUL_OP ? MM_C : PW_Y));
	if (last[3] % 8 != 0 || last[3] > 256) return fail(NOT_SUPPORTED, "the size of the heads");
	return OK;
}

static int check_convolution(const desc *how, const desc *x, const desc *w, const desc *y) {
	const int64_t *a = dims_of(x), *b = dims_of(w), *c = dims_of(y), *pre = get(how, CONV_PRE, NULL), *post = get(how, CONV_POST, NULL),
		*step = get(how, CONV_STRIDES, NULL), *wide = get(how, CONV_DILATIONS, NULL);
	int fits = a[0] == c[0] && b[0] == c[1] && a[1] % b[1] == 0 && b[0] % (a[1] / b[1]) == 0;
	for (int i = 0; i < 2; i++) fits &= c[2 + i] == (a[2 + i] + pre[i] + post[i] - wide[i] * (b[2 + i] - 1) - 1) / step[i] + 1;
	return fits ? OK : fail(BAD_PARAM, "the shapes of a convolution do not fit");
}

static int check(const desc *d) {
	switch (d->kind) {
	case TENSOR: {
		NEED(T_TYPE, T_DIMS, T_STRIDES, T_ID, T_ALIGN);
		int64_t n, m;
		const int64_t *dims = get(d, T_DIMS, &n);
		get(d, T_STRIDES, &m);
		if (n != 4 || m != 4 || element(d) == TYPES) return fail(BAD_PARAM, "a tensor's dimensions or type");
		for (int i = 0; i < 4; i++)
			if (dims[i] <= 0) return fail(BAD_PARAM, "a tensor without elements");
		return OK;
	}
	case MATMUL: NEED(MM_MATH); return OK;
	case POINTWISE: NEED(PW_MODE, PW_MATH); return OK;
	case REDUCTION: NEED(RED_MODE, RED_MATH); return OK;
	case RESHAPE_OP: NEED(RESHAPE_X, RESHAPE_Y); return OK;
	case MATMUL_OP: {
		NEED(MM_A, MM_B, MM_C, MM_DESC);
		const int64_t *a = dims_of(get_desc(d, MM_A)), *b = dims_of(get_desc(d, MM_B)), *c = dims_of(get_desc(d, MM_C));
		if (a[2] != c[2] || a[3] != b[2] || b[3] != c[3] || a[0] != c[0] || b[0] != c[0] || c[1] % a[1] != 0 || c[1] % b[1] != 0)
			return fail(BAD_PARAM, "the shapes of a product do not fit");
		return OK;
	}
	case REDUCTION_OP: {
		NEED(RED_X, RED_Y, RED_DESC);
		const int64_t *x = dims_of(get_desc(d, RED_X)), *y = dims_of(get_desc(d, RED_Y));
		for (int i = 0; i < 4; i++)
			if (x[i] % y[i] != 0) return fail(BAD_PARAM, "the shapes of a reduction do not fit");
		return OK;
	}
	case CONV: NEED(CONV_MATH, CONV_MODE, CONV_DILATIONS, CONV_STRIDES, CONV_POST, CONV_PRE, CONV_AXES); return OK;
	case CONV_FORWARD:
		NEED(FORWARD_ALPHA, FORWARD_BETA, FORWARD_DESC, FORWARD_W, FORWARD_X, FORWARD_Y);
		return check_convolution(get_desc(d, FORWARD_DESC), get_desc(d, FORWARD_X), get_desc(d, FORWARD_W), get_desc(d, FORWARD_Y));
	case CONV_DATA:
		NEED(DATA_ALPHA, DATA_BETA, DATA_DESC, DATA_W, DATA_X, DATA_Y);
		return check_convolution(get_desc(d, DATA_DESC), get_desc(d, DATA_X), get_desc(d, DATA_W), get_desc(d, DATA_Y));
	case CONV_FILTER:
		NEED(FILTER_ALPHA, FILTER_BETA, FILTER_DESC, FILTER_W, FILTER_X, FILTER_Y);
		return check_convolution(get_desc(d, FILTER_DESC), get_desc(d, FILTER_X), get_desc(d, FILTER_W), get_desc(d, FILTER_Y));
	case POINTWISE_OP: {
		NEED(PW_DESC, PW_X, PW_Y);
		desc *in[3];
		const int64_t *y = dims_of(get_desc(d, PW_Y));
		const int mode = get_enum(get_desc(d, PW_DESC), PW_MODE), n = inputs(d, in);
		if (n != ports(mode) || (mode == INDEX && !get(get_desc(d, PW_DESC), PW_AXIS, NULL))) return fail(BAD_PARAM, "the operands of a pointwise operation");
		for (int i = 0; i < n; i++)
			for (int j = 0; j < 4; j++)
				if (dims_of(in[i])[j] != y[j] && dims_of(in[i])[j] != 1) return fail(BAD_PARAM, "the shapes of a pointwise operation do not fit");
		return OK;
	}
	case GRAPH: NEED(GRAPH_HANDLE, GRAPH_OPS); return check_graph(d);
	case HEURISTIC: NEED(HEUR_GRAPH, HEUR_MODE); return OK;
	case PLAN: NEED(PLAN_HANDLE, PLAN_CONFIG); return OK;
	case PACK: {
		NEED(PACK_IDS, PACK_POINTERS, PACK_WORKSPACE);
		int64_t n, m;
		get(d, PACK_IDS, &n), get(d, PACK_POINTERS, &m);
		return n == m ? OK : fail(BAD_PARAM, "as many addresses as ids");
	}
	}
	return fail(BAD_PARAM, "a descriptor of this kind is not finalized");
}

int cudnnBackendFinalize(desc *d) {
	int r = check(d);
	d->finalized = r == OK;
	return r;
}

// A configuration and an engine refer to their graph by the attribute HEUR_GRAPH.
static void refer(desc *to, const desc *from) {
	desc *g = get_desc(from, HEUR_GRAPH);
	to->finalized = 0;
	cudnnBackendSetAttribute(to, HEUR_GRAPH, DESC_T, 1, &g);
	to->finalized = 1;
}

int cudnnBackendGetAttribute(desc *d, int name, int type, int64_t n, int64_t *got, void *v) {
	switch (name) {
	case HEUR_RESULTS: {
		if (type != DESC_T || !d->finalized) break;
		int64_t ops;
		desc **op = get(get_desc(d, HEUR_GRAPH), GRAPH_OPS, &ops);
		*got = is_convolution(op[ops - 1]) ? 2 : 1;
		for (int64_t i = 0; i < n && i < *got; i++) {
			refer(((desc **)v)[i], d);
			((desc **)v)[i]->unordered = *got == 2 && i == 0;
		}
		return OK;
	}
	case CONFIG_ENGINE:
		if (type != DESC_T || n != 1) break;
		refer(*(desc **)v, d);
		(*(desc **)v)->unordered = d->unordered;
		*got = 1;
		return OK;
	case ENGINE_NOTES: { // sums in float32 that are then rounded mean additions in any order
		int64_t ops;
		desc **op = get(get_desc(d, HEUR_GRAPH), GRAPH_OPS, &ops);
		*got = 0;
		if (type != NOTE_T) break;
		if (op[ops - 1]->kind == POINTWISE_OP || d->unordered) ((int *)v)[(*got)++] = NONDETERMINISTIC;
		return OK;
	}
	case PLAN_WORKSPACE:
		if (type != INT64_T || n != 1 || !d->finalized) break;
		*(int64_t *)v = 64, *got = 1;
		return OK;
	}
	return fail(BAD_PARAM, "no such attribute");
}

// value is a tensor while a graph is computed.
typedef struct { desc *t; char *p; int64_t strides[4]; int owned; } value;

typedef struct {
	desc *graph;
	int count;
	value values[64];
	float numbers[8];
	int wrong;
} job;

static value *find(job *j, desc *t) {
	for (int i = 0; i < j->count; i++)
		if (id_of(j->values[i].t) == id_of(t)) return &j->values[i];
	value *v = &j->values[j->count++];
	const int64_t *d = dims_of(t);
	*v = (value){t, malloc(d[0] * d[1] * d[2] * d[3] * sizes[element(t)]), {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}, 1};
	return v;
}

// at is the address of an element. An index along a dimension of size 1 is 0, and neighbouring heads
// may share one.
static char *at(const value *v, const int64_t *i, const int64_t *of) {
	const int64_t *d = dims_of(v->t);
	int64_t n = 0;
	for (int k = 0; k < 4; k++) n += (d[k] == of[k] ? i[k] : i[k] * d[k] / of[k]) * v->strides[k];
	return v->p + n * sizes[element(v->t)];
}
static double load(const value *v, const int64_t *i, const int64_t *of) {
	const int type = element(v->t);
	return is_float(type) ? load_float(type, at(v, i, of)) : load_int(type, at(v, i, of));
}
static void store(const value *v, const int64_t *i, double x) {
	const int type = element(v->t);
	if (is_float(type)) store_float(type, at(v, i, dims_of(v->t)), x);
	else store_int(type, at(v, i, dims_of(v->t)), x);
}

#define EACH(i, d) \
	for (i[0] = 0; i[0] < d[0]; i[0]++) for (i[1] = 0; i[1] < d[1]; i[1]++) for (i[2] = 0; i[2] < d[2]; i[2]++) for (i[3] = 0; i[3] < d[3]; i[3]++)

static void matmul(value *c, value *a, value *b) {
	const int64_t *d = dims_of(c->t), inner = dims_of(a->t)[3];
	int64_t i[4];
	EACH(i, d) {
		double sum = 0;
		for (int64_t l = 0; l < inner; l++) {
			const int64_t ia[] = {i[0], i[1], i[2], l}, ib[] = {i[0], i[1], l, i[3]};
			const int64_t da[] = {d[0], d[1], d[2], inner}, db[] = {d[0], d[1], inner, d[3]};
			sum += load(a, ia, da) * load(b, ib, db);
		}
		store(c, i, sum);
	}
}

static void reduce(int mode, value *y, value *x) {
	const int64_t *d = dims_of(x->t), *e = dims_of(y->t);
	int64_t i[4], k[4];
	EACH(i, e) {
		double r = mode == MAX ? -INFINITY : 0;
		const int64_t step[] = {d[0] / e[0], d[1] / e[1], d[2] / e[2], d[3] / e[3]};
		EACH(k, step) {
			const int64_t l[] = {i[0] * step[0] + k[0], i[1] * step[1] + k[1], i[2] * step[2] + k[2], i[3] * step[3] + k[3]};
			const double v = load(x, l, d);
			r = mode == MAX ? (v > r || v != v ? v : r) : r + v;
		}
		store(y, i, r);
	}
}

// reshape reads x at the place in memory where y has its element.
static void reshape(value *y, value *x) {
	const int64_t *d = dims_of(y->t), *e = dims_of(x->t), *to = strides_of(y->t), *from = strides_of(x->t);
	int64_t i[4];
	EACH(i, d) {
		int64_t place = i[0] * to[0] + i[1] * to[1] + i[2] * to[2] + i[3] * to[3], l[4], done = 0;
		for (int n = 0; n < 4; n++) { // the largest stride first
			int most = -1;
			for (int k = 0; k < 4; k++)
				if (!(done >> k & 1) && (most < 0 || from[k] > from[most] || (from[k] == from[most] && e[k] == 1))) most = k;
			done |= 1 << most;
			l[most] = e[most] == 1 ? 0 : place / from[most];
			place -= l[most] * from[most];
		}
		store(y, i, load(x, l, e));
	}
}

static void pointwise(const desc *how, value *y, value **in, int n) {
	const int64_t *d = dims_of(y->t);
	const int mode = get_enum(how, PW_MODE);
	int64_t i[4];
	EACH(i, d) {
		double x[3] = {0};
		for (int k = 0; k < n; k++) x[k] = mode == INDEX ? 0 : load(in[k], i, d);
		double r = 0;
		switch (mode) {
		case ADD: r = x[0] + x[1]; break;
		case MUL: r = x[0] * x[1]; break;
		case DIV: r = x[0] / x[1]; break;
		case SUB: r = x[0] - x[1]; break;
		case EXP: r = exp(x[0]); break;
		case LOG: r = log(x[0]); break;
		case IDENTITY: r = x[0]; break;
		case GE: r = x[0] >= x[1]; break;
		case INDEX: r = i[*(int64_t *)get(how, PW_AXIS, NULL)]; break;
		case SELECT: r = x[2] ? x[0] : x[1]; break;
		}
		store(y, i, r);
	}
}

// convolve computes one of x, w and y from the others.
static void convolve(const desc *op, value *x, value *w, value *y) {
	const int alpha_at = op->kind == CONV_FORWARD ? FORWARD_ALPHA : op->kind == CONV_DATA ? DATA_ALPHA : FILTER_ALPHA;
	const desc *how = get_desc(op, alpha_at + 2);
	const int64_t *pad = get(how, CONV_PRE, NULL), *step = get(how, CONV_STRIDES, NULL), *wide = get(how, CONV_DILATIONS, NULL);
	const int64_t *dx = dims_of(x->t), *dw = dims_of(w->t), *dy = dims_of(y->t), per = dw[0] / (dx[1] / dw[1]);
	value *to = op->kind == CONV_FORWARD ? y : op->kind == CONV_DATA ? x : w;
	const int64_t *d = dims_of(to->t);
	double *sums = calloc(d[0] * d[1] * d[2] * d[3], sizeof *sums);
	int64_t i[4], k[3];
	EACH(i, dy) for (k[0] = 0; k[0] < dw[1]; k[0]++) for (k[1] = 0; k[1] < dw[2]; k[1]++) for (k[2] = 0; k[2] < dw[3]; k[2]++) {
		const int64_t in[] = {i[0], i[1] / per * dw[1] + k[0], i[2] * step[0] - pad[0] + k[1] * wide[0], i[3] * step[1] - pad[1] + k[2] * wide[1]};
		const int64_t tap[] = {i[1], k[0], k[1], k[2]}, *out = op->kind == CONV_FORWARD ? i : op->kind == CONV_DATA ? in : tap;
		if (in[2] < 0 || in[2] >= dx[2] || in[3] < 0 || in[3] >= dx[3]) continue;
		double product = 1;
		if (to != x) product *= load(x, in, dx);
		if (to != w) product *= load(w, tap, dw);
		if (to != y) product *= load(y, i, dy);
		sums[((out[0] * d[1] + out[1]) * d[2] + out[2]) * d[3] + out[3]] += product;
	}
	const double alpha = *(float *)get(op, alpha_at, NULL), beta = *(float *)get(op, alpha_at + 1, NULL);
	int64_t n = 0;
	EACH(i, d) {
		const double v = alpha * sums[n++];
		store(to, i, beta == 0 ? v : v + beta * load(to, i, d));
	}
	free(sums);
}

// compute runs a job, which may run again.
static void compute(void *arg) {
	job copy = *(job *)arg, *j = &copy;
	int64_t n;
	desc **ops = get(j->graph, GRAPH_OPS, &n);
	for (int64_t i = 0; i < n; i++) {
		desc *in[3];
		value *operands[3], *y;
		const int count = inputs(ops[i], in);
		for (int k = 0; k < count; k++) operands[k] = find(j, in[k]);
		y = find(j, output(ops[i]));
		switch (ops[i]->kind) {
		case MATMUL_OP: matmul(y, operands[0], operands[1]); break;
		case REDUCTION_OP: reduce(get_enum(get_desc(ops[i], RED_DESC), RED_MODE), y, operands[0]); break;
		case RESHAPE_OP: reshape(y, operands[0]); break;
		case POINTWISE_OP: pointwise(get_desc(ops[i], PW_DESC), y, operands, count); break;
		case CONV_FORWARD: convolve(ops[i], operands[0], operands[1], y); break;
		case CONV_DATA: convolve(ops[i], y, operands[0], operands[1]); break;
		case CONV_FILTER: convolve(ops[i], operands[0], y, operands[1]);
		}
		if (j->wrong && i == n - 1) {
			const int64_t first[4] = {0};
			store(y, first, 77);
		}
	}
	for (int i = 0; i < j->count; i++)
		if (j->values[i].owned) free(j->values[i].p);
}

static void drop_job(void *arg) {
	drop(((job *)arg)->graph);
	free(arg);
}

int cudnnBackendExecute(handle *h, desc *plan, desc *pack) {
	if (!plan->finalized || !pack->finalized) return fail(NOT_FINALIZED, "a plan or a pack is not finalized");
	desc *g = get_desc(get_desc(plan, PLAN_CONFIG), HEUR_GRAPH);
	int64_t n, count;
	desc **ops = get(g, GRAPH_OPS, &n);
	const int64_t *ids = get(pack, PACK_IDS, &count);
	char **pointers = get(pack, PACK_POINTERS, NULL);
	job *j = calloc(1, sizeof *j);
	j->graph = g, j->wrong = setting("cudnn_wrong", 0) || get_desc(plan, PLAN_CONFIG)->unordered;
	g->refers++;
	int numbers = 0;
	for (int64_t i = 0; i < n; i++) {
		desc *all[4];
		int tensors = inputs(ops[i], all);
		all[tensors++] = output(ops[i]);
		for (int k = 0; k < tensors; k++) {
			if (get_bool(all[k], T_VIRTUAL)) continue;
			int known = 0;
			for (int v = 0; v < j->count; v++) known |= id_of(j->values[v].t) == id_of(all[k]);
			for (int64_t v = 0; v < count && !known; v++) {
				if (ids[v] != id_of(all[k])) continue;
				value *x = &j->values[j->count++];
				*x = (value){all[k], pointers[v], {0}, 0};
				memcpy(x->strides, strides_of(all[k]), sizeof x->strides);
				if (get_bool(all[k], T_VALUE)) {
					memcpy(&j->numbers[numbers], pointers[v], sizeof(float));
					x->p = (char *)&j->numbers[numbers++];
				}
				known = 1;
			}
			if (!known) return fail(BAD_PARAM, "an operand has no address");
		}
	}
	return fakegpu_enqueue(h->stream, compute, j, drop_job) == 0 ? OK : fail(BAD_PARAM, "the stream takes no work");
}
