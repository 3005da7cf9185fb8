// A fake libcublasLt that computes products on the host as cuBLAS's documentation defines them:
// column-major, D = alpha·op(A)·op(B) + beta·C, with an epilogue. It sums in double. The products
// run on their stream. It proposes four algorithms: one that is like the first, one that splits the inner dimension, and one
// that is fast because it computes nothing.
#include "elements.h"
#include "observe.h"
#include <math.h>
#include <stdlib.h>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8, AUX_POINTER = 11, AUX_LD = 12 };
enum { LAYOUT_LD = 4, BATCH_COUNT = 5, BATCH_OFFSET = 6 };
enum { NONE = 1, BIAS = 4, GELU_AUX = 32 | 128, DGELU = 64 | 128 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 }; // cudaDataType

int fakegpu_enqueue_kernel(void *stream, void (*run)(void *), void *arg, void (*drop)(void *));

typedef struct { int scale; int32_t ta, tb, epilogue; char *bias, *aux; int64_t ld_aux; } operation;
typedef struct { int type; uint64_t rows, cols; int64_t ld; int32_t batch; int64_t offset; } layout;
typedef struct { uint64_t data[8]; } algorithm; // data[0] is one of these
enum { FIRST, LIKE_FIRST, SPLIT, WRONG, ALGORITHMS };
typedef struct { algorithm algo; size_t workspace; int state; float waves; int reserved[4]; } found;

int cublasLtCreate(void **handle) { return *handle = malloc(1), OK; }
int cublasLtDestroy(void *handle) { return free(handle), OK; }
const char *cublasLtGetStatusName(int status) { return status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER"; }
size_t cublasLtGetVersion(void) { return 130100; }

int cublasLtMatmulDescCreate(operation **op, int compute, int scale) {
	(void)compute;
	*op = calloc(1, sizeof **op);
	(*op)->scale = scale;
	(*op)->epilogue = NONE;
	return OK;
}
int cublasLtMatmulDescDestroy(operation *op) { return free(op), OK; }
int cublasLtMatmulDescSetAttribute(operation *op, int which, const void *v, size_t size) {
	switch (which) {
	case TRANSA: memcpy(&op->ta, v, size); return OK;
	case TRANSB: memcpy(&op->tb, v, size); return OK;
	case EPILOGUE: memcpy(&op->epilogue, v, size); return OK;
	case BIAS_POINTER: memcpy(&op->bias, v, size); return OK;
	case AUX_POINTER: memcpy(&op->aux, v, size); return OK;
	case AUX_LD: memcpy(&op->ld_aux, v, size); return OK;
	}
	return INVALID_VALUE;
}

static int element(int type) {
	switch (type) {
	case R_32F: return FLOAT32;
	case R_64F: return FLOAT64;
	case R_16F: return FLOAT16;
	case R_16BF: return BFLOAT16;
	}
	return TYPES;
}

int cublasLtMatrixLayoutCreate(layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
	if (element(type) == TYPES) return NOT_SUPPORTED;
	*l = malloc(sizeof **l);
	**l = (layout){element(type), rows, cols, ld, 1, 0};
	return OK;
}
int cublasLtMatrixLayoutSetAttribute(layout *l, int which, const void *v, size_t size) {
	switch (which) {
	case LAYOUT_LD: memcpy(&l->ld, v, size); return OK;
	case BATCH_COUNT: memcpy(&l->batch, v, size); return OK;
	case BATCH_OFFSET: memcpy(&l->offset, v, size); return OK;
	}
	return INVALID_VALUE;
}
int cublasLtMatrixLayoutDestroy(layout *l) { return free(l), OK; }
int cublasLtMatmulPreferenceCreate(void **p) { return *p = malloc(1), OK; }
int cublasLtMatmulPreferenceDestroy(void *p) { return free(p), OK; }
int cublasLtMatmulPreferenceSetAttribute(void *p, int which, const void *v, size_t size) {
	(void)p, (void)which, (void)v, (void)size;
	return OK;
}

// check returns an error if the shapes do not fit or cuBLAS has no kernel.
static int check(const operation *op, const layout *a, const layout *b, const layout *d) {
	const uint64_t m = op->ta ? a->cols : a->rows, k = op->ta ? a->rows : a->cols;
	const uint64_t kb = op->tb ? b->cols : b->rows, n = op->tb ? b->rows : b->cols;
	if (m != d->rows || n != d->cols || k != kb) return INVALID_VALUE;
	if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || d->ld < (int64_t)d->rows) return INVALID_VALUE;
	if (a->batch != d->batch || b->batch != d->batch) return INVALID_VALUE;
	if (op->epilogue & 128 && (op->ld_aux < (int64_t)d->rows || op->ld_aux % 8 != 0 || (uintptr_t)op->aux % 16 != 0)) return INVALID_VALUE;
	return OK;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, operation *op, layout *a, layout *b, layout *c, layout *d, void *preference,
		int most, found *into, int *count) {
	(void)handle, (void)c, (void)preference;
	*count = 0;
	int r = check(op, a, b, d);
	if (r != OK) return r;
	for (; *count < most && *count < ALGORITHMS; ++*count) into[*count] = (found){.algo = {{*count}}};
	return OK;
}
int cublasLtMatmulAlgoConfigGetAttribute(const algorithm *algo, int which, void *v, size_t size, size_t *written) {
	enum { SPLITK_NUM = 2 };
	const int32_t parts = algo->data[0] == SPLIT ? 2 : 1;
	if (which != SPLITK_NUM || size != sizeof parts) return INVALID_VALUE;
	memcpy(v, &parts, *written = size);
	return OK;
}

int32_t fakegpu_products; // number of products so far
int32_t fakegpu_first_is_slow; // whether the first algorithm takes eight times as long as the second

typedef struct {
	operation op;
	layout a, b, c, d;
	double alpha, beta;
	const char *A, *B, *C;
	char *D;
	uint64_t algorithm;
} product;

static double at(const char *x, const layout *l, int transposed, int64_t batch, uint64_t row, uint64_t col) {
	uint64_t i = transposed ? col + row * l->ld : row + col * l->ld;
	return load_float(l->type, x + (batch * l->offset + i) * sizes[l->type]);
}

// gelu is GELU by tanh, and gelu_slope its derivative.
static double gelu_tanh(double x) { return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)); }
static double gelu(double x) { return x / 2 * (1 + gelu_tanh(x)); }
static double gelu_slope(double x) {
	const double t = gelu_tanh(x);
	return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

static void multiply(void *arg) {
	product *p = arg;
	const int64_t begin = fakegpu_now();
	const uint64_t k = p->op.ta ? p->a.rows : p->a.cols;
	const size_t size = sizes[p->d.type];
	for (int64_t batch = 0; batch < p->d.batch; batch++) {
		for (uint64_t j = 0; j < p->d.cols; j++) {
			for (uint64_t i = 0; i < p->d.rows; i++) {
				double sum;
				for (int times = p->algorithm == FIRST && fakegpu_first_is_slow ? 8 : 1; times > 0; times--) {
					sum = p->algorithm == SPLIT;
					for (uint64_t l = 0; l < k && p->algorithm != WRONG; l++)
						sum += at(p->A, &p->a, p->op.ta, batch, i, l) * at(p->B, &p->b, p->op.tb, batch, l, j);
				}
				double v = p->alpha * sum;
				if (p->beta != 0) v += p->beta * at(p->C, &p->c, 0, batch, i, j);
				if (p->op.epilogue & BIAS) v += load_float(p->d.type, p->op.bias + i * size);
				const size_t beside = (i + j * p->op.ld_aux) * size;
				if ((p->op.epilogue & ~BIAS) == GELU_AUX) {
					store_float(p->d.type, p->op.aux + beside, v);
					v = gelu(v);
				}
				if (p->op.epilogue == DGELU) v *= gelu_slope(load_float(p->d.type, p->op.aux + beside));
				store_float(p->d.type, p->D + (batch * p->d.offset + i + j * p->d.ld) * size, v);
			}
		}
	}
	fakegpu_ran((observed){.kind = OBSERVED_KERNEL, .name = "fake_gemm", .begin = begin});
}

int cublasLtMatmul(void *handle, operation *op, const void *alpha, const void *A, layout *a, const void *B, layout *b,
		const void *beta, const void *C, layout *c, void *D, layout *d, const algorithm *algo, void *workspace, size_t size, void *stream) {
	(void)handle, (void)workspace, (void)size;
	int r = check(op, a, b, d);
	if (r != OK) return r;
	fakegpu_products++;
	product *p = malloc(sizeof *p);
	const int wide = op->scale == R_64F;
	*p = (product){*op, *a, *b, *c, *d, wide ? *(const double *)alpha : *(const float *)alpha,
		wide ? *(const double *)beta : *(const float *)beta, A, B, C, D, algo->data[0]};
	return fakegpu_enqueue_kernel(stream, multiply, p, free) == 0 ? OK : INVALID_VALUE;
}
