// libcublasLt, loaded at run time, like libcuda in driver.h.
#ifndef GODDP_BLASLT_H
#define GODDP_BLASLT_H

#include <stdlib.h>

#include "driver.h"

#define BLASLT_FUNCTIONS(X) \
	X(cublasLtCreate, (uintptr_t *)) \
	X(cublasLtDestroy, (uintptr_t)) \
	X(cublasLtMatmulDescCreate, (uintptr_t *, int, int)) \
	X(cublasLtMatmulDescDestroy, (uintptr_t)) \
	X(cublasLtMatmulDescSetAttribute, (uintptr_t, int, const void *, size_t)) \
	X(cublasLtMatrixLayoutCreate, (uintptr_t *, int, uint64_t, uint64_t, int64_t)) \
	X(cublasLtMatrixLayoutSetAttribute, (uintptr_t, int, const void *, size_t)) \
	X(cublasLtMatrixLayoutDestroy, (uintptr_t)) \
	X(cublasLtMatmulPreferenceCreate, (uintptr_t *)) \
	X(cublasLtMatmulPreferenceDestroy, (uintptr_t)) \
	X(cublasLtMatmulPreferenceSetAttribute, (uintptr_t, int, const void *, size_t)) \
	X(cublasLtMatmulAlgoGetHeuristic, (uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, \
		int, blaslt_found *, int *)) \
	X(cublasLtMatmulAlgoConfigGetAttribute, (const blaslt_algo *, int, void *, size_t, size_t *)) \
	X(cublasLtMatmul, (uintptr_t, uintptr_t, const void *, uint64_t, uintptr_t, uint64_t, uintptr_t, const void *, \
		uint64_t, uintptr_t, uint64_t, uintptr_t, const blaslt_algo *, uint64_t, size_t, uintptr_t))

typedef struct { uint64_t data[8]; } blaslt_algo; // cublasLtMatmulAlgo_t

typedef struct { // cublasLtMatmulHeuristicResult_t
	blaslt_algo algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} blaslt_found;

typedef struct {
#define X(name, args) int (*name) args;
	BLASLT_FUNCTIONS(X)
#undef X
	const char *(*cublasLtGetStatusName)(int);
	size_t (*cublasLtGetVersion)(void);
	uintptr_t handle;
} blaslt;

// The symbols of a table's fields, in order.
static const char *const blaslt_symbols[] = {
#define X(name, args) #name,
	BLASLT_FUNCTIONS(X)
#undef X
	"cublasLtGetStatusName", "cublasLtGetVersion",
};

static inline int blaslt_count(void) { return sizeof blaslt_symbols / sizeof *blaslt_symbols; }
static inline const char *blaslt_symbol(int i) { return blaslt_symbols[i]; }
static inline void blaslt_set(blaslt *t, int i, void *f) { ((void **)t)[i] = f; }
static inline const char *blaslt_error_name(blaslt *t, int status) { return t->cublasLtGetStatusName(status); }
static inline size_t blaslt_version(blaslt *t) { return t->cublasLtGetVersion(); }

enum { BLASLT_NOT_INITIALIZED = 1, BLASLT_NOT_SUPPORTED = 15 }; // cublasStatus_t

static inline int blaslt_create(blaslt *t, driver *d, uintptr_t ctx) {
	if (drv_enter(d, ctx) != 0) return BLASLT_NOT_INITIALIZED;
	return t->cublasLtCreate(&t->handle);
}
static inline int blaslt_destroy(blaslt *t, driver *d, uintptr_t ctx) {
	if (drv_enter(d, ctx) != 0) return BLASLT_NOT_INITIALIZED;
	return t->cublasLtDestroy(t->handle);
}

enum { BLASLT_WAYS = 8 };

// A product in cuBLAS's terms: column-major, D [rows cols] = A · B + C.
typedef struct {
	int type, compute, scale;     // cudaDataType, cublasComputeType_t, cudaDataType
	int ta, tb;                   // whether A and B are stored transposed
	uint64_t rows, cols, inner;
	int epilogue;                 // cublasLtEpilogue_t
	uint32_t alignA, alignB, alignD; // of the operands' addresses, in bytes
	uint64_t bias;                // of rows numbers; its alignment counts
	uint64_t aux;                 // the epilogue's matrix, laid out as D; 0 if it has none
	int32_t batch;                // how many products, and how many elements apart their operands are
	int64_t strideA, strideB, strideD;
	size_t workspace;
	int ways;                     // how many algorithms are wanted, at most BLASLT_WAYS
} blaslt_product;

typedef struct {
	uintptr_t op, a, b, d;
	int scale, count, way;
	blaslt_found found[BLASLT_WAYS]; // count algorithms, the best by cuBLAS's estimate first; products use found[way]
} blaslt_plan;

static inline void blaslt_plan_free(blaslt *t, blaslt_plan *p) {
	if (p->op) t->cublasLtMatmulDescDestroy(p->op);
	if (p->a) t->cublasLtMatrixLayoutDestroy(p->a);
	if (p->b) t->cublasLtMatrixLayoutDestroy(p->b);
	if (p->d) t->cublasLtMatrixLayoutDestroy(p->d);
	free(p);
}

// blaslt_batch makes a layout one of several matrices.
static inline int blaslt_batch(blaslt *t, uintptr_t layout, int32_t count, int64_t stride) {
	enum { BATCH_COUNT = 5, STRIDED_BATCH_OFFSET }; // cublasLtMatrixLayoutAttribute_t
	const int r = t->cublasLtMatrixLayoutSetAttribute(layout, BATCH_COUNT, &count, sizeof count);
	return r != 0 ? r : t->cublasLtMatrixLayoutSetAttribute(layout, STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static inline int blaslt_describe(blaslt *t, blaslt_plan *p, const blaslt_product *w, uintptr_t pref) {
	enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8, AUX_POINTER = 11, AUX_LD = 12 }; // cublasLtMatmulDescAttributes_t
	enum { WORKSPACE = 1, REDUCTIONS = 3, ALIGN_A = 5, ALIGN_B, ALIGN_C, ALIGN_D }; // cublasLtMatmulPreferenceAttributes_t
	// Keep partial sums in the compute type: in the result's type they would lose precision, and
	// in-place reductions are nondeterministic.
	const uint32_t reductions = 2; // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
	const int32_t ta = w->ta, tb = w->tb;
	const uint64_t workspace = w->workspace;
	const int64_t ld = w->rows;
	int r;
#define TRY(call) if ((r = (call)) != 0) return r
	TRY(t->cublasLtMatmulDescCreate(&p->op, w->compute, w->scale));
	TRY(t->cublasLtMatmulDescSetAttribute(p->op, TRANSA, &ta, sizeof ta));
	TRY(t->cublasLtMatmulDescSetAttribute(p->op, TRANSB, &tb, sizeof tb));
	TRY(t->cublasLtMatmulDescSetAttribute(p->op, EPILOGUE, &w->epilogue, sizeof w->epilogue));
	if (w->bias) TRY(t->cublasLtMatmulDescSetAttribute(p->op, BIAS_POINTER, &w->bias, sizeof w->bias));
	if (w->aux) {
		TRY(t->cublasLtMatmulDescSetAttribute(p->op, AUX_POINTER, &w->aux, sizeof w->aux));
		TRY(t->cublasLtMatmulDescSetAttribute(p->op, AUX_LD, &ld, sizeof ld));
	}
	TRY(t->cublasLtMatrixLayoutCreate(&p->a, w->type, ta ? w->inner : w->rows, ta ? w->rows : w->inner, ta ? w->inner : w->rows));
	TRY(t->cublasLtMatrixLayoutCreate(&p->b, w->type, tb ? w->cols : w->inner, tb ? w->inner : w->cols, tb ? w->cols : w->inner));
	TRY(t->cublasLtMatrixLayoutCreate(&p->d, w->type, w->rows, w->cols, w->rows));
	if (w->batch > 1) {
		TRY(blaslt_batch(t, p->a, w->batch, w->strideA));
		TRY(blaslt_batch(t, p->b, w->batch, w->strideB));
		TRY(blaslt_batch(t, p->d, w->batch, w->strideD));
	}
	TRY(t->cublasLtMatmulPreferenceSetAttribute(pref, WORKSPACE, &workspace, sizeof workspace));
	TRY(t->cublasLtMatmulPreferenceSetAttribute(pref, REDUCTIONS, &reductions, sizeof reductions));
	TRY(t->cublasLtMatmulPreferenceSetAttribute(pref, ALIGN_A, &w->alignA, sizeof w->alignA));
	TRY(t->cublasLtMatmulPreferenceSetAttribute(pref, ALIGN_B, &w->alignB, sizeof w->alignB));
	TRY(t->cublasLtMatmulPreferenceSetAttribute(pref, ALIGN_C, &w->alignD, sizeof w->alignD));
	TRY(t->cublasLtMatmulPreferenceSetAttribute(pref, ALIGN_D, &w->alignD, sizeof w->alignD));
#undef TRY
	return t->cublasLtMatmulAlgoGetHeuristic(t->handle, p->op, p->a, p->b, p->d, p->d, pref, w->ways, p->found, &p->count);
}

// blaslt_split returns into how many parts an algorithm splits the inner dimension; if it is not known, 0 or less.
static inline int32_t blaslt_split(blaslt *t, const blaslt_found *f) {
	enum { SPLITK_NUM = 2 }; // cublasLtMatmulAlgoConfigAttributes_t
	int32_t parts = 0;
	size_t written;
	t->cublasLtMatmulAlgoConfigGetAttribute(&f->algo, SPLITK_NUM, &parts, sizeof parts, &written);
	return parts;
}

// blaslt_keep keeps the first algorithm, and those that split the inner dimension into as many parts.
static inline void blaslt_keep(blaslt *t, blaslt_plan *p) {
	int kept = 1;
	for (int i = 1; i < p->count; i++) {
		const int32_t parts = blaslt_split(t, &p->found[i]);
		if (p->found[i].state == 0 && parts > 0 && parts == blaslt_split(t, p->found)) p->found[kept++] = p->found[i];
	}
	p->count = kept;
}

// blaslt_plan_new finds the algorithm for a product; BLASLT_NOT_SUPPORTED means that there is
// none.
static inline int blaslt_plan_new(blaslt *t, driver *d, uintptr_t ctx, const blaslt_product *w, blaslt_plan **out) {
	if (drv_enter(d, ctx) != 0) return BLASLT_NOT_INITIALIZED;
	uintptr_t pref = 0;
	int r = t->cublasLtMatmulPreferenceCreate(&pref);
	if (r != 0) return r;
	blaslt_plan *p = calloc(1, sizeof *p);
	p->scale = w->scale;
	r = blaslt_describe(t, p, w, pref);
	t->cublasLtMatmulPreferenceDestroy(pref);
	if (r == 0 && (p->count == 0 || p->found[0].state != 0)) r = BLASLT_NOT_SUPPORTED;
	if (r != 0) {
		blaslt_plan_free(t, p);
		p = NULL;
	} else {
		blaslt_keep(t, p);
	}
	*out = p;
	return r;
}

// blaslt_run computes D = alpha·A·B + beta·C with a plan. C may be D.
static inline int blaslt_run(blaslt *t, driver *d, uintptr_t ctx, blaslt_plan *p, double alpha, uint64_t a, uint64_t b,
		double beta, uint64_t c, uint64_t dst, uint64_t bias, uint64_t aux, uint64_t workspace, size_t size, uintptr_t stream) {
	enum { BIAS_POINTER = 8, AUX_POINTER = 11, R_64F = 1 };
	if (drv_enter(d, ctx) != 0) return BLASLT_NOT_INITIALIZED;
	int r = 0;
	if (bias) r = t->cublasLtMatmulDescSetAttribute(p->op, BIAS_POINTER, &bias, sizeof bias);
	if (aux && r == 0) r = t->cublasLtMatmulDescSetAttribute(p->op, AUX_POINTER, &aux, sizeof aux);
	if (r != 0) return r;
	const float alpha32 = alpha, beta32 = beta;
	const int wide = p->scale == R_64F;
	return t->cublasLtMatmul(t->handle, p->op, wide ? (const void *)&alpha : &alpha32, a, p->a, b, p->b,
		wide ? (const void *)&beta : &beta32, c, p->d, dst, p->d, &p->found[p->way].algo, workspace, size, stream);
}

#endif
