// A fake libnvrtc. The host's C++ compiler makes a shared library from a CUDA source and cuda.h,
// which the fake libcuda loads. The log is the compiler's output, with the line numbers of the
// source.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, OUT_OF_MEMORY = 1, COMPILATION = 6 };

typedef struct {
	char *source, *name;
	char *code, *log;
	size_t size, log_size;
} program;

const char *nvrtcGetErrorString(int code) { return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

int nvrtcCreateProgram(program **p, const char *source, const char *name, int n, const char *const *headers, const char *const *names) {
	(void)n, (void)headers, (void)names;
	*p = calloc(1, sizeof **p);
	(*p)->source = strdup(source);
	(*p)->name = strdup(name);
	return OK;
}
int nvrtcDestroyProgram(program **p) {
	free((*p)->source), free((*p)->name), free((*p)->code), free((*p)->log), free(*p);
	return OK;
}

static char *read_file(const char *path, size_t *size) {
	FILE *f = fopen(path, "r");
	struct stat st;
	char *text = NULL;
	if (f != NULL && fstat(fileno(f), &st) == 0 && (text = calloc(1, st.st_size + 1)) != NULL) *size = fread(text, 1, st.st_size, f);
	if (f != NULL) fclose(f);
	return text;
}

// The folder of this library. It is found once, when the library is loaded, because ranks that are
// threads of one process call the functions below at the same time.
static char folder[PATH_MAX] = ".";

__attribute__((constructor)) static void find_folder(void) {
	Dl_info self;
	if (!dladdr((void *)nvrtcGetErrorString, &self)) return;
	const char *end = strrchr(self.dli_fname, '/');
	if (end != NULL) snprintf(folder, sizeof folder, "%.*s", (int)(end - self.dli_fname), self.dli_fname);
}

// The version is no version of CUDA and differs for every cuda.h, because device/cuda caches
// machine code by version.
int nvrtcVersion(int *major, int *minor) {
	char path[PATH_MAX + 16];
	snprintf(path, sizeof path, "%s/cuda.h", folder);
	size_t size = 0;
	char *text = read_file(path, &size);
	unsigned hash = 2166136261u; // FNV-1a
	for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
	free(text);
	*major = 0;
	*minor = hash & 0x7fffffff;
	return OK;
}

int nvrtcCompileProgram(program *p, int n, const char *const *options) {
	(void)n, (void)options;
	if (strcmp(p->name, "small_allreduce.cu") == 0) { // it is written in PTX; libcuda.c has the kernels
		static const char code[] = "small_allreduce";
		p->log = calloc(1, 1);
		p->code = malloc(p->size = sizeof code);
		memcpy(p->code, code, sizeof code);
		return OK;
	}
	char dir[] = "/tmp/fakegpu-nvrtc-XXXXXX", path[sizeof dir + 16], command[PATH_MAX + 256];
	if (mkdtemp(dir) == NULL) return OUT_OF_MEMORY;
	snprintf(path, sizeof path, "%s/source.cc", dir);
	FILE *f = fopen(path, "w");
	if (f == NULL) return OUT_OF_MEMORY;
	fprintf(f, "#line 1 \"%s\"\n%s", p->name, p->source);
	fclose(f);
	snprintf(command, sizeof command,
		"cd %s && g++ -std=c++17 -O1 -w -fno-strict-aliasing -ffp-contract=off -shared -fPIC -include %s/cuda.h source.cc -o code.so >log 2>&1", dir, folder);
	int failed = system(command);
	snprintf(path, sizeof path, "%s/log", dir);
	p->log = read_file(path, &p->log_size);
	unlink(path);
	snprintf(path, sizeof path, "%s/code.so", dir);
	p->code = failed ? NULL : read_file(path, &p->size);
	unlink(path);
	snprintf(path, sizeof path, "%s/source.cc", dir);
	unlink(path);
	rmdir(dir);
	return p->code == NULL ? COMPILATION : OK;
}

int nvrtcGetProgramLogSize(program *p, size_t *size) { return *size = p->log_size + 1, OK; }
int nvrtcGetProgramLog(program *p, char *log) { return memcpy(log, p->log, p->log_size), log[p->log_size] = 0, OK; }
int nvrtcGetCUBINSize(program *p, size_t *size) { return *size = p->size, OK; }
int nvrtcGetCUBIN(program *p, char *code) { return memcpy(code, p->code, p->size), OK; }
