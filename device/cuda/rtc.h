// libnvrtc, loaded at run time, like libcuda in driver.h. The file is not called nvrtc.h, because a
// program that uses CUDA through cgo has CUDA's header of that name on its include path, and cgo
// would find that one first.
#ifndef GODDP_RTC_H
#define GODDP_RTC_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define NVRTC_FUNCTIONS(X) \
	X(nvrtcVersion, (int *, int *)) \
	X(nvrtcCreateProgram, (uintptr_t *, const char *, const char *, int, const char *const *, const char *const *)) \
	X(nvrtcCompileProgram, (uintptr_t, int, const char *const *)) \
	X(nvrtcDestroyProgram, (uintptr_t *)) \
	X(nvrtcGetProgramLogSize, (uintptr_t, size_t *)) \
	X(nvrtcGetProgramLog, (uintptr_t, char *)) \
	X(nvrtcGetCUBINSize, (uintptr_t, size_t *)) \
	X(nvrtcGetCUBIN, (uintptr_t, char *))

typedef struct {
#define X(name, args) int (*name) args;
	NVRTC_FUNCTIONS(X)
#undef X
	const char *(*nvrtcGetErrorString)(int);
} nvrtc;

// The symbols of a table's fields, in order.
static const char *const nvrtc_symbols[] = {
#define X(name, args) #name,
	NVRTC_FUNCTIONS(X)
#undef X
	"nvrtcGetErrorString",
};

static inline int nvrtc_count(void) { return sizeof nvrtc_symbols / sizeof *nvrtc_symbols; }
static inline const char *nvrtc_symbol(int i) { return nvrtc_symbols[i]; }
static inline void nvrtc_set(nvrtc *t, int i, void *f) { ((void **)t)[i] = f; }
static inline const char *nvrtc_error_name(nvrtc *t, int code) { return t->nvrtcGetErrorString(code); }
static inline int nvrtc_version(nvrtc *t, int *major, int *minor) { return t->nvrtcVersion(major, minor); }

// nvrtc_path is the file that the library was loaded from, or null.
static inline const char *nvrtc_path(nvrtc *t) {
	Dl_info info;
	return dladdr((void *)t->nvrtcVersion, &info) ? info.dli_fname : NULL;
}

// nvrtc_compile compiles source to machine code, and returns its size and the compiler's log. The
// caller must free both. It runs for seconds; concurrent calls are allowed.
static inline int nvrtc_compile(nvrtc *t, const char *source, const char *name, int n, const char *const *options,
		char **code, size_t *size, char **log) {
	uintptr_t program = 0;
	int r = t->nvrtcCreateProgram(&program, source, name, 0, NULL, NULL);
	if (r != 0) return r;
	r = t->nvrtcCompileProgram(program, n, options);
	size_t length = 0;
	if (t->nvrtcGetProgramLogSize(program, &length) == 0 && length > 1 && (*log = calloc(1, length + 1)) != NULL)
		t->nvrtcGetProgramLog(program, *log);
	if (r == 0) r = t->nvrtcGetCUBINSize(program, size);
	if (r == 0 && (*code = malloc(*size)) != NULL) r = t->nvrtcGetCUBIN(program, *code);
	t->nvrtcDestroyProgram(&program);
	return r;
}

#endif
