//go:build cgo && linux

package cupti

// #include "collect.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// oldest is the oldest supported version of CUPTI, that of CUDA 11.8. Versions were numbered from 1 until
// CUDA 12; 13.0 is 130000.
const oldest = 18

// isOptional reports whether a supported CUPTI may lack a function. Without these functions no calls are
// recorded.
func isOptional(symbol string) bool {
	return symbol == "cuptiActivityEnableDriverApi" || symbol == "cuptiActivityEnableRuntimeApi"
}

// active is the process's use of the Activity interface.
var active struct {
	mu         sync.Mutex
	fns        *C.cupti     // nil until the library is open; in C's memory, because every call passes it
	recordings []*Recording // the interface is enabled while there are recordings
}

// Recording collects the activity of one GPU, and the process's driver calls.
type Recording struct {
	device     uint32
	activities []Activity // the activities that Take has not returned yet; guarded by active.mu
}

// Start starts a recording of the GPU with an ordinal, as the driver numbers it in this process. The
// error is a *dl.NotFoundError if there is no CUPTI.
func Start(ordinal int) (*Recording, error) {
	active.mu.Lock()
	defer active.mu.Unlock()
	if active.fns == nil {
		fns, err := openLibrary()
		if err != nil {
			return nil, err
		}
		active.fns = fns
	}
	if len(active.recordings) == 0 {
		if err := check("cuptiActivityEnable", C.cupti_enable(active.fns)); err != nil {
			return nil, err
		}
	}
	if err := collect(); err != nil { // earlier records do not belong to the new recording
		if len(active.recordings) == 0 {
			C.cupti_disable(active.fns)
		}
		return nil, err
	}
	r := &Recording{device: uint32(ordinal)}
	active.recordings = append(active.recordings, r)
	return r, nil
}

// Take returns the activities that have ended since the last Take. Activities that are running during a
// Take of any recording are lost, so callers must synchronize their streams first.
func (r *Recording) Take() ([]Activity, error) {
	active.mu.Lock()
	defer active.mu.Unlock()
	err := collect()
	taken := r.activities
	r.activities = nil
	return taken, err
}

// Stop ends the recording and returns the remaining activities. When no recording is left, CUPTI stops
// observing the GPUs. Stop must be called once.
func (r *Recording) Stop() ([]Activity, error) {
	active.mu.Lock()
	defer active.mu.Unlock()
	if len(active.recordings) == 1 {
		C.cupti_disable(active.fns)
	}
	err := collect()
	active.recordings = slices.DeleteFunc(active.recordings, func(other *Recording) bool { return other == r })
	return r.activities, err
}

// openLibrary opens CUPTI. The function table is never freed, because CUPTI stays loaded.
func openLibrary() (*C.cupti, error) {
	lib, err := dl.Open(dl.NVIDIA("CUPTI", jobenv.LibCUPTIVar, "libcupti.so.13", "libcupti.so.12", "libcupti.so"))
	if err != nil {
		return nil, err
	}
	fns := (*C.cupti)(C.calloc(1, C.sizeof_cupti))
	for i := range C.int(C.CUPTI_FUNCTION_COUNT) {
		symbol := C.GoString(C.cupti_symbol(i))
		f, err := lib.Lookup(symbol)
		if err != nil && !isOptional(symbol) {
			C.free(unsafe.Pointer(fns))
			return nil, err
		}
		C.cupti_set(fns, i, f)
	}
	if v := C.cupti_version(fns); v < oldest {
		C.free(unsafe.Pointer(fns))
		return nil, fmt.Errorf("%v has version %d, want %d (CUDA 11.8) or newer", lib, v, oldest)
	}
	return fns, nil
}

// check converts a CUPTI result to an error. The caller must hold active.mu.
func check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", call, C.GoString(C.cupti_error(active.fns, code)), int(code))
}

// collect reads all of CUPTI's records, and adds each to its recordings. After an error it reads the
// records received so far, and frees their buffers. The caller must hold active.mu.
func collect() error {
	var offset C.int64_t
	err := check("cuptiGetTimestamp", C.cupti_offset(active.fns, &offset))
	isTimed := err == nil
	err = errors.Join(err, check("cuptiActivityFlushAll", C.cupti_flush(active.fns)))
	names := map[*C.char]string{}
	for b := C.buffer_take(); b != nil; b = C.buffer_take() {
		var record *C.uint8_t
		var a C.activity
		for isTimed && C.buffer_next(active.fns, b, &record, &a) != 0 {
			add(&a, int64(offset), names)
		}
		C.buffer_free(b)
	}
	if n := C.cupti_dropped(active.fns); n > 0 {
		err = errors.Join(err, fmt.Errorf("CUPTI dropped %d records, because the earlier ones were not read in time", n))
	}
	return err
}

// add adds an activity to its recordings. offset converts CUPTI's times to Unix times in nanoseconds.
// names caches names.
func add(a *C.activity, offset int64, names map[*C.char]string) {
	name := "memset"
	switch {
	case a.name != nil:
		var ok bool
		if name, ok = names[a.name]; !ok {
			name = shortName(C.GoString(a.name))
			names[a.name] = name
		}
	case Kind(a.kind) == Memcpy:
		if name = copies[uint8(a.copy)]; name == "" {
			name = "copy"
		}
	}
	for _, r := range active.recordings {
		if Kind(a.kind) != Call && uint32(a.device) != r.device {
			continue
		}
		r.activities = append(r.activities, Activity{
			Kind: Kind(a.kind), Name: name, Correlation: uint32(a.correlation), Stream: uint32(a.stream), Graph: uint32(a.graph),
			Bytes: uint64(a.bytes), Thread: uint32(a.thread),
			Begin: time.Unix(0, int64(a.begin)+offset), End: time.Unix(0, int64(a.end)+offset),
		})
	}
}
