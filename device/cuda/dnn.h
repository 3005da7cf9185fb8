// libcudnn's backend API, loaded at run time, like libcuda in driver.h. A graph of operations is
// built from descriptors, which have attributes. The constants are those of cuDNN 9's headers, which
// are stable within version 9. The file is not called cudnn.h, because a program that uses cuDNN
// through cgo has cuDNN's header of that name on its include path.
#ifndef GODDP_DNN_H
#define GODDP_DNN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE // dladdr
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define CUDNN_FUNCTIONS(X) \
	X(cudnnCreate, int, (uintptr_t *)) \
	X(cudnnDestroy, int, (uintptr_t)) \
	X(cudnnSetStream, int, (uintptr_t, uintptr_t)) \
	X(cudnnGetVersion, size_t, (void)) \
	X(cudnnGetErrorString, const char *, (int)) \
	X(cudnnGetLastErrorString, void, (char *, size_t)) \
	X(cudnnBackendCreateDescriptor, int, (int, uintptr_t *)) \
	X(cudnnBackendDestroyDescriptor, int, (uintptr_t)) \
	X(cudnnBackendSetAttribute, int, (uintptr_t, int, int, int64_t, const void *)) \
	X(cudnnBackendGetAttribute, int, (uintptr_t, int, int, int64_t, int64_t *, void *)) \
	X(cudnnBackendFinalize, int, (uintptr_t)) \
	X(cudnnBackendExecute, int, (uintptr_t, uintptr_t, uintptr_t))

typedef struct {
#define X(name, result, args) result (*name) args;
	CUDNN_FUNCTIONS(X)
#undef X
	uintptr_t handle;
	char text[1024]; // cuDNN's text for the last failed call
} cudnn;

// The symbols of a table's fields, in order.
static const char *const cudnn_symbols[] = {
#define X(name, result, args) #name,
	CUDNN_FUNCTIONS(X)
#undef X
};

static inline int cudnn_count(void) { return sizeof cudnn_symbols / sizeof *cudnn_symbols; }
static inline const char *cudnn_symbol(int i) { return cudnn_symbols[i]; }
static inline void cudnn_set(cudnn *t, int i, void *f) { ((void **)t)[i] = f; }
static inline size_t cudnn_version(cudnn *t) { return t->cudnnGetVersion(); }
static inline const char *cudnn_error_name(cudnn *t, int status) { return t->cudnnGetErrorString(status); }
static inline const char *cudnn_error_text(cudnn *t) { return t->text; }

// cudnn_path is the file that the library was loaded from, or null.
static inline const char *cudnn_path(cudnn *t) {
	Dl_info info;
	return dladdr((void *)t->cudnnGetVersion, &info) ? info.dli_fname : NULL;
}

enum { CUDNN_NOT_INITIALIZED = 1001 }; // cudnnStatus_t

// cudnn_said saves the error text of a failed call, which is thread-local, because a goroutine may
// continue on another thread.
static inline int cudnn_said(cudnn *t, int status) {
	t->text[0] = 0;
	if (status != 0) t->cudnnGetLastErrorString(t->text, sizeof t->text);
	return status;
}

#define IN_CUDNN(call) return drv_enter(d, ctx) != 0 ? CUDNN_NOT_INITIALIZED : cudnn_said(t, call)

static inline int cudnn_create(cudnn *t, driver *d, uintptr_t ctx) { IN_CUDNN(t->cudnnCreate(&t->handle)); }
static inline int cudnn_destroy(cudnn *t, driver *d, uintptr_t ctx) { IN_CUDNN(t->cudnnDestroy(t->handle)); }
static inline int cudnn_make(cudnn *t, driver *d, uintptr_t ctx, int kind, uintptr_t *into) {
	IN_CUDNN(t->cudnnBackendCreateDescriptor(kind, into));
}
static inline int cudnn_attribute(cudnn *t, driver *d, uintptr_t ctx, uintptr_t desc, int name, int type, int64_t n, const void *v) {
	IN_CUDNN(t->cudnnBackendSetAttribute(desc, name, type, n, v));
}
static inline int cudnn_query(cudnn *t, driver *d, uintptr_t ctx, uintptr_t desc, int name, int type, int64_t n, int64_t *got, void *v) {
	IN_CUDNN(t->cudnnBackendGetAttribute(desc, name, type, n, got, v));
}
static inline int cudnn_finalize(cudnn *t, driver *d, uintptr_t ctx, uintptr_t desc) { IN_CUDNN(t->cudnnBackendFinalize(desc)); }
static inline void cudnn_free(cudnn *t, uintptr_t desc) { t->cudnnBackendDestroyDescriptor(desc); }

enum { CUDNN_OPERANDS = 16, CUDNN_SCALARS = 4 };

// A plan computes a graph with one of cuDNN's engines. The first operands are arrays in device
// memory, the others are numbers that cuDNN reads from the host when a plan is run.
typedef struct {
	uintptr_t desc;
	int64_t workspace; // in bytes
	int arrays, scalars;
	int64_t ids[CUDNN_OPERANDS]; // the operands' unique ids
	float values[CUDNN_SCALARS];
} cudnn_plan;

// cudnn_run enqueues a plan. data holds the addresses of the arrays.
static inline int cudnn_run(cudnn *t, driver *d, uintptr_t ctx, cudnn_plan *p, uintptr_t stream, const uint64_t *data, uint64_t workspace) {
	enum { VARIANT_PACK = 16, IDS = 1000, POINTERS = 1001, WORKSPACE = 1003, INT64 = 3, VOID_PTR = 6 };
	if (drv_enter(d, ctx) != 0) return CUDNN_NOT_INITIALIZED;
	void *pointers[CUDNN_OPERANDS], *work = (void *)workspace;
	for (int i = 0; i < p->arrays; i++) pointers[i] = (void *)data[i];
	for (int i = 0; i < p->scalars; i++) pointers[p->arrays + i] = &p->values[i];
	const int n = p->arrays + p->scalars;
	uintptr_t pack;
	int r = t->cudnnBackendCreateDescriptor(VARIANT_PACK, &pack);
	if (r != 0) return cudnn_said(t, r);
	r = t->cudnnBackendSetAttribute(pack, IDS, INT64, n, p->ids);
	if (r == 0) r = t->cudnnBackendSetAttribute(pack, POINTERS, VOID_PTR, n, pointers);
	if (r == 0) r = t->cudnnBackendSetAttribute(pack, WORKSPACE, VOID_PTR, 1, &work);
	if (r == 0) r = t->cudnnBackendFinalize(pack);
	if (r == 0) r = t->cudnnSetStream(t->handle, stream);
	if (r == 0) r = t->cudnnBackendExecute(t->handle, p->desc, pack);
	r = cudnn_said(t, r);
	t->cudnnBackendDestroyDescriptor(pack);
	return r;
}

#endif
