// A stand-in for libcublasLt that computes float32 products on the host, as
// cuBLAS's documentation defines them: column-major, D = alpha·op(A)·op(B) +
// beta·C, with an epilogue. It runs inline, on memory that is the host's.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8 };
enum { NONE = 1, BIAS = 4, BGRADB = 512 };

typedef struct { int32_t ta, tb, epilogue; float *bias; } operation;
typedef struct { uint64_t rows, cols; int64_t ld; } layout;
typedef struct { struct { uint64_t data[8]; } algo; size_t workspace; int state; float waves; int reserved[4]; } found;

int cublasLtCreate(void **handle) { return *handle = malloc(1), OK; }
int cublasLtDestroy(void *handle) { return free(handle), OK; }
const char *cublasLtGetStatusName(int status) { return status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER"; }
size_t cublasLtGetVersion(void) { return 130100; }

int cublasLtMatmulDescCreate(operation **op, int compute, int scale) {
	if (scale != 0) return NOT_SUPPORTED; // float32 alone
	*op = calloc(1, sizeof **op);
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
	}
	return INVALID_VALUE;
}
int cublasLtMatrixLayoutCreate(layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
	*l = malloc(sizeof **l);
	**l = (layout){rows, cols, ld};
	return OK;
}
int cublasLtMatrixLayoutDestroy(layout *l) { return free(l), OK; }
int cublasLtMatmulPreferenceCreate(void **p) { return *p = malloc(1), OK; }
int cublasLtMatmulPreferenceDestroy(void *p) { return free(p), OK; }
int cublasLtMatmulPreferenceSetAttribute(void *p, int which, const void *v, size_t size) { return OK; }

// Whether the shapes fit, and cuBLAS has a kernel.
static int check(const operation *op, const layout *a, const layout *b, const layout *d) {
	const uint64_t m = op->ta ? a->cols : a->rows, k = op->ta ? a->rows : a->cols;
	const uint64_t kb = op->tb ? b->cols : b->rows, n = op->tb ? b->rows : b->cols;
	if (m != d->rows || n != d->cols || k != kb) return INVALID_VALUE;
	if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || d->ld < (int64_t)d->rows) return INVALID_VALUE;
	if (op->epilogue == BGRADB && (!op->tb || k == 1)) return NOT_SUPPORTED;
	return OK;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, operation *op, layout *a, layout *b, layout *c, layout *d, void *preference,
		int most, found *into, int *count) {
	*count = 0;
	int r = check(op, a, b, d);
	if (r != OK) return r;
	memset(into, 0, 2 * sizeof *into);
	*count = 2;
	return OK;
}

int32_t standin_products; // computed so far

static float at(const float *x, const layout *l, int transposed, uint64_t row, uint64_t col) {
	return transposed ? x[col + row * l->ld] : x[row + col * l->ld];
}

int cublasLtMatmul(void *handle, operation *op, const float *alpha, const float *A, layout *a, const float *B, layout *b,
		const float *beta, const float *C, layout *c, float *D, layout *d, const void *algo, void *workspace, size_t size, void *stream) {
	int r = check(op, a, b, d);
	if (r != OK) return r;
	standin_products++;
	const uint64_t k = op->ta ? a->rows : a->cols;
	for (uint64_t j = 0; j < d->cols; j++) {
		for (uint64_t i = 0; i < d->rows; i++) {
			float sum = 0;
			for (uint64_t l = 0; l < k; l++) sum += at(A, a, op->ta, i, l) * at(B, b, op->tb, l, j);
			float v = *alpha * sum;
			if (*beta != 0) v += *beta * C[i + j * c->ld];
			if (op->epilogue & BIAS) v += op->bias[i];
			D[i + j * d->ld] = v;
		}
		if (op->epilogue == BGRADB) {
			op->bias[j] = 0;
			for (uint64_t l = 0; l < k; l++) op->bias[j] += at(B, b, op->tb, l, j);
		}
	}
	return OK;
}
