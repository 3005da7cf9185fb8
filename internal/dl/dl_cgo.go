//go:build cgo && unix

package dl

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// The text of dlerror is valid until the thread's next call, so the shim copies it before the
// goroutine can move to another thread. The caller frees *err.

static void *dl_open(const char *path, char **err) {
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		const char *why = dlerror();
		*err = strdup(why != NULL ? why : "unknown error");
	}
	return handle;
}

static void *dl_lookup(void *handle, const char *name, char **err) {
	dlerror();
	void *sym = dlsym(handle, name);
	const char *why = dlerror();
	if (why != NULL || sym == NULL) {
		*err = strdup(why != NULL ? why : "its address is null");
		return NULL;
	}
	return sym;
}
*/
import "C"

import (
	"errors"
	"unsafe"
)

func open(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	return result(C.dl_open(name, &why), why)
}

func lookup(handle unsafe.Pointer, symbol string) (unsafe.Pointer, error) {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	return result(C.dl_lookup(handle, name, &why), why)
}

func closeHandle(handle unsafe.Pointer) { C.dlclose(handle) }

// result converts a shim's result to Go's form.
func result(p unsafe.Pointer, why *C.char) (unsafe.Pointer, error) {
	if p == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, errors.New(C.GoString(why))
	}
	return p, nil
}
