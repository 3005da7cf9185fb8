//go:build cgo && unix && amd64

package cpu

/*
#include <stdint.h>
#include <stdlib.h>

// These are oneDNN's declarations, of its versions 2 and 3. A memory descriptor (md) says where the elements of a
// tensor lie; a primitive descriptor (pd) says how a primitive computes.
enum {
	ok, out_of_memory, no_code = 3, // statuses; the last one: no code for these sizes
	f32 = 3, any = 1, direct = 1, forward_training = 64, scratchpad_mode_user = 1, exec_arg_md = 255, in_order = 1,
	ARG_FROM = 1, ARG_TO = 17, ARG_SRC = 1, ARG_DST = 17, ARG_WEIGHTS = 33, ARG_BIAS = 41, ARG_SCRATCHPAD = 80,
	ARG_DIFF_SRC = 129, ARG_DIFF_DST = 145, ARG_DIFF_WEIGHTS = 161,
};
typedef int64_t dims[12];
typedef struct { int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime; } version_t;
typedef struct { int arg; void *memory; } exec_arg;

typedef struct {
	const version_t *(*version)(void);
	int (*engine_create)(void **engine, int kind, size_t index);
	int (*stream_create)(void **stream, void *engine, unsigned flags);
	int (*stream_destroy)(void *stream);
	int (*attr_create)(void **attr);
	int (*attr_set_scratchpad_mode)(void *attr, int mode);
	int (*memory_create)(void **memory, const void *md, void *engine, void *data);
	int (*memory_destroy)(void *memory);
	size_t (*md_size)(const void *md);
	int (*md_equal)(const void *, const void *);
	const void *(*pd_query_md)(const void *pd, int what, int index);
	int (*pd_destroy)(void *pd);
	int (*reorder)(void **pd, const void *from, void *engine, const void *to, void *to_engine, const void *attr);
	int (*primitive_create)(void **primitive, const void *pd);
	int (*primitive_execute)(const void *primitive, void *stream, int n, const exec_arg *args);
	int (*primitive_destroy)(void *primitive);

	// Version 2 fills structs of the caller.
	int (*md_by_strides2)(void *md, int n, const int64_t *size, int type, const int64_t *stride);
	int (*md_by_tag2)(void *md, int n, const int64_t *size, int type, int tag);
	int (*forward2)(void *desc, int prop, int alg, const void *src, const void *w, const void *bias, const void *dst,
		const int64_t *stride, const int64_t *dilation, const int64_t *left, const int64_t *right);
	int (*grad_input2)(void *desc, int alg, const void *src, const void *w, const void *dst,
		const int64_t *stride, const int64_t *dilation, const int64_t *left, const int64_t *right);
	int (*grad_weight2)(void *desc, int alg, const void *src, const void *w, const void *bias, const void *dst,
		const int64_t *stride, const int64_t *dilation, const int64_t *left, const int64_t *right);
	int (*pd_create2)(void **pd, const void *desc, const void *attr, void *engine, const void *hint);

	// Version 3 allocates.
	int (*md_by_strides3)(void **md, int n, const int64_t *size, int type, const int64_t *stride);
	int (*md_by_tag3)(void **md, int n, const int64_t *size, int type, int tag);
	int (*md_destroy3)(void *md);
	int (*forward3)(void **pd, void *engine, int prop, int alg, const void *src, const void *w, const void *bias, const void *dst,
		const int64_t *stride, const int64_t *dilation, const int64_t *left, const int64_t *right, const void *attr);
	int (*grad_input3)(void **pd, void *engine, int alg, const void *src, const void *w, const void *dst,
		const int64_t *stride, const int64_t *dilation, const int64_t *left, const int64_t *right, const void *hint, const void *attr);
	int (*grad_weight3)(void **pd, void *engine, int alg, const void *src, const void *w, const void *bias, const void *dst,
		const int64_t *stride, const int64_t *dilation, const int64_t *left, const int64_t *right, const void *hint, const void *attr);

	int (*max_threads)(void);
	void (*set_threads)(int n);
	int major, runtime;
	void *engine, *attr;
} functions;

// A step is a primitive: the convolution, or a reorder of an operand.
typedef struct { void *pd, *primitive; } step;

// The operands are the images, the weight and the result, or gradients of them. The kind of a convolution is the
// operand that it computes.
enum { images, weight, result, operands };

typedef struct {
	int kind, has_bias;
	dims size[operands], stride[operands]; // as goddp has them; a weight has five axes
	dims inner[operands];                  // the strides to compute with; 0: oneDNN chooses
	dims step, dilation, padding;
} problem;

typedef struct {
	int kind, arg[operands];
	step conv, via[operands]; // via: reorders of operands that oneDNN computes with in another order
	size_t at[operands], scratchpad_at, size;
} plan;

static int one_thread(const functions *l) {
	if (!l->max_threads) return 0;
	int before = l->max_threads();
	l->set_threads(1);
	return before;
}

static void restore_threads(const functions *l, int before) {
	if (before) l->set_threads(before);
}

// A descriptor is version 2's struct of 696 bytes, or version 3's pointer.
typedef struct { void *p[256]; } descriptor;

static const void *md_of(const functions *l, const descriptor *d) { return l->major == 2 ? d : d->p[0]; }

static int describe(const functions *l, descriptor *d, int n, const int64_t *size, const int64_t *stride) {
	if (l->major == 2)
		return stride[0] ? l->md_by_strides2(d, n, size, f32, stride) : l->md_by_tag2(d, n, size, f32, any);
	return stride[0] ? l->md_by_strides3(d->p, n, size, f32, stride) : l->md_by_tag3(d->p, n, size, f32, any);
}

static const void *md_arg(const functions *l, const void *pd, int arg) { return l->pd_query_md(pd, exec_arg_md, arg); }

// reserve returns where in the work area the operand of a step lies.
static size_t reserve(const functions *l, plan *p, const void *pd, int arg) {
	size_t at = p->size, size = l->md_size(md_arg(l, pd, arg));
	p->size += (size + 255) / 256 * 256;
	return at;
}

static int describe_convolution(const functions *l, const problem *q, const void **md, const void *bias, void **pd, int kind, const void *hint) {
	const int64_t *s = q->step, *d = q->dilation, *e = q->padding;
	if (l->major == 2) {
		char desc[1 << 14]; // 5976 bytes in 2.6
		int r = kind == result ? l->forward2(desc, forward_training, direct, md[0], md[1], bias, md[2], s, d, e, e)
			: kind == images ? l->grad_input2(desc, direct, md[0], md[1], md[2], s, d, e, e)
			: l->grad_weight2(desc, direct, md[0], md[1], NULL, md[2], s, d, e, e);
		return r ? r : l->pd_create2(pd, desc, l->attr, l->engine, hint);
	}
	return kind == result ? l->forward3(pd, l->engine, forward_training, direct, md[0], md[1], bias, md[2], s, d, e, e, l->attr)
		: kind == images ? l->grad_input3(pd, l->engine, direct, md[0], md[1], md[2], s, d, e, e, hint, l->attr)
		: l->grad_weight3(pd, l->engine, direct, md[0], md[1], NULL, md[2], s, d, e, e, hint, l->attr);
}

static void destroy_step(const functions *l, step s) {
	if (s.primitive) l->primitive_destroy(s.primitive);
	if (s.pd) l->pd_destroy(s.pd);
}

static void destroy_plan(const functions *l, plan *p) {
	destroy_step(l, p->conv);
	for (int i = 0; i < operands; i++) destroy_step(l, p->via[i]);
	free(p);
}

static int fill_plan(const functions *l, const problem *q, plan *p, descriptor *user, descriptor *inner, descriptor *bias) {
	const void *md[operands], *bias_md = NULL;
	int r;
	for (int i = 0; i < operands; i++) {
		int n = i == weight ? 5 : 4;
		if ((r = describe(l, &user[i], n, q->size[i], q->stride[i])) || (r = describe(l, &inner[i], n, q->size[i], q->inner[i]))) return r;
		md[i] = md_of(l, &inner[i]);
	}
	if (q->has_bias) {
		dims one = {1};
		if ((r = describe(l, bias, 1, &q->size[result][1], one))) return r;
		bias_md = md_of(l, bias);
	}
	void *hint = NULL;
	if ((r = describe_convolution(l, q, md, bias_md, &p->conv.pd, result, NULL))) return r;
	if (q->kind != result) {
		hint = p->conv.pd;
		p->conv.pd = NULL;
		r = describe_convolution(l, q, md, NULL, &p->conv.pd, q->kind, hint);
		l->pd_destroy(hint);
		if (r) return r;
	}
	if ((r = l->primitive_create(&p->conv.primitive, p->conv.pd))) return r;
	p->kind = q->kind;
	p->arg[images] = q->kind == images ? ARG_DIFF_SRC : ARG_SRC;
	p->arg[weight] = q->kind == weight ? ARG_DIFF_WEIGHTS : ARG_WEIGHTS;
	p->arg[result] = q->kind == result ? ARG_DST : ARG_DIFF_DST;
	for (int i = 0; i < operands; i++) {
		const void *mine = md_of(l, &user[i]), *theirs = md_arg(l, p->conv.pd, p->arg[i]);
		if (l->md_equal(mine, theirs)) continue;
		step *via = &p->via[i];
		r = i == q->kind ? l->reorder(&via->pd, theirs, l->engine, mine, l->engine, l->attr) : l->reorder(&via->pd, mine, l->engine, theirs, l->engine, l->attr);
		if (r || (r = l->primitive_create(&via->primitive, via->pd))) return r;
		p->at[i] = reserve(l, p, p->conv.pd, p->arg[i]);
	}
	p->scratchpad_at = p->size;
	size_t most = 0;
	for (int i = -1; i < operands; i++) { // the steps run one after another
		const void *pd = i < 0 ? p->conv.pd : p->via[i].pd;
		size_t size = pd ? l->md_size(md_arg(l, pd, ARG_SCRATCHPAD)) : 0;
		if (size > most) most = size;
	}
	p->size += most;
	return ok;
}

static int make_plan(const functions *l, const problem *q, plan **to) {
	descriptor md[2 * operands + 1] = {0};
	plan *p = calloc(1, sizeof *p);
	if (!p) return out_of_memory;
	int before = one_thread(l);
	int r = fill_plan(l, q, p, md, md + operands, md + 2 * operands);
	restore_threads(l, before);
	for (int i = 0; l->major == 3 && i < 2 * operands + 1; i++)
		if (md[i].p[0]) l->md_destroy3(md[i].p[0]);
	if (r) destroy_plan(l, p);
	else *to = p;
	return r;
}

// run executes a step. It has n operands at data, and a scratchpad.
static int run_step(const functions *l, void *stream, step s, int n, const int *arg, void *const *data, void *scratchpad) {
	exec_arg args[5] = {0};
	int r = ok, made = 0;
	for (; !r && made <= n; made++) {
		int a = made < n ? arg[made] : ARG_SCRATCHPAD;
		args[made].arg = a;
		r = l->memory_create(&args[made].memory, md_arg(l, s.pd, a), l->engine, made < n ? data[made] : scratchpad);
	}
	if (!r) r = l->primitive_execute(s.primitive, stream, made, args);
	for (int i = 0; i < made; i++)
		if (args[i].memory) l->memory_destroy(args[i].memory);
	return r;
}

static int run_plan(const functions *l, const plan *p, void *x, void *w, void *y, void *bias, char *work) {
	void *mine[operands] = {x, w, y}, *theirs[4], *stream;
	static const int between[2] = {ARG_FROM, ARG_TO};
	int arg[4] = {p->arg[0], p->arg[1], p->arg[2], ARG_BIAS}, r = l->stream_create(&stream, l->engine, in_order);
	if (r) return r;
	int before = one_thread(l);
	for (int i = 0; i < operands; i++) {
		theirs[i] = p->via[i].pd ? work + p->at[i] : mine[i];
		void *ends[2] = {mine[i], theirs[i]};
		if (!r && p->via[i].pd && i != p->kind) r = run_step(l, stream, p->via[i], 2, between, ends, work + p->scratchpad_at);
	}
	theirs[operands] = bias;
	if (!r) r = run_step(l, stream, p->conv, bias ? 4 : 3, arg, theirs, work + p->scratchpad_at);
	if (!r && p->via[p->kind].pd) {
		void *ends[2] = {theirs[p->kind], mine[p->kind]};
		r = run_step(l, stream, p->via[p->kind], 2, between, ends, work + p->scratchpad_at);
	}
	l->stream_destroy(stream);
	restore_threads(l, before);
	return r;
}

static int open_library(functions *l) {
	l->major = l->version()->major;
	l->runtime = l->version()->cpu_runtime;
	int r = l->engine_create(&l->engine, 1, 0);
	if (!r) r = l->attr_create(&l->attr);
	if (!r) r = l->attr_set_scratchpad_mode(l->attr, scratchpad_mode_user);
	return r;
}
*/
import "C"

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/jobenv"
)

// oneDNN calls the library. Its calls may run concurrently.
type oneDNN struct {
	lib   *dl.Library
	calls *C.functions // in C's memory
	log   *slog.Logger

	refused sync.Once // logs the first error of making a plan

	mu    sync.Mutex
	plans map[convolution]*convPlan
}

func (d *oneDNN) String() string { return d.lib.String() }

// openOneDNN loads oneDNN. It returns nil if the user does not want it.
func openOneDNN(log *slog.Logger) (*oneDNN, error) {
	if os.Getenv(jobenv.OneDNNVar) == "none" {
		return nil, nil
	}
	lib, err := dl.Open(dl.OneDNN(jobenv.OneDNNVar))
	if err != nil {
		return nil, err
	}
	d := &oneDNN{lib: lib, log: log, calls: (*C.functions)(C.calloc(1, C.sizeof_functions)), plans: map[convolution]*convPlan{}}
	c := d.calls
	type symbols map[string]**[0]byte
	find := func(of symbols) error {
		for name, f := range of {
			p, err := lib.Lookup(name)
			if err != nil {
				return err
			}
			*f = (*[0]byte)(p)
		}
		return nil
	}
	if err := find(symbols{
		"dnnl_version": &c.version, "dnnl_engine_create": &c.engine_create,
		"dnnl_stream_create": &c.stream_create, "dnnl_stream_destroy": &c.stream_destroy,
		"dnnl_primitive_attr_create": &c.attr_create, "dnnl_primitive_attr_set_scratchpad_mode": &c.attr_set_scratchpad_mode,
		"dnnl_memory_create": &c.memory_create, "dnnl_memory_destroy": &c.memory_destroy,
		"dnnl_memory_desc_get_size": &c.md_size, "dnnl_memory_desc_equal": &c.md_equal,
		"dnnl_primitive_desc_query_md": &c.pd_query_md, "dnnl_primitive_desc_destroy": &c.pd_destroy,
		"dnnl_reorder_primitive_desc_create": &c.reorder, "dnnl_primitive_create": &c.primitive_create,
		"dnnl_primitive_execute": &c.primitive_execute, "dnnl_primitive_destroy": &c.primitive_destroy,
	}); err != nil {
		return nil, err
	}
	if code := C.open_library(c); code != 0 {
		return nil, fmt.Errorf("%v: no engine: error %d", lib, code)
	}
	switch c.major {
	case 2:
		err = find(symbols{
			"dnnl_memory_desc_init_by_strides": &c.md_by_strides2, "dnnl_memory_desc_init_by_tag": &c.md_by_tag2,
			"dnnl_dilated_convolution_forward_desc_init":          &c.forward2,
			"dnnl_dilated_convolution_backward_data_desc_init":    &c.grad_input2,
			"dnnl_dilated_convolution_backward_weights_desc_init": &c.grad_weight2,
			"dnnl_primitive_desc_create":                          &c.pd_create2,
		})
	case 3:
		err = find(symbols{
			"dnnl_memory_desc_create_with_strides": &c.md_by_strides3, "dnnl_memory_desc_create_with_tag": &c.md_by_tag3,
			"dnnl_memory_desc_destroy":                                &c.md_destroy3,
			"dnnl_convolution_forward_primitive_desc_create":          &c.forward3,
			"dnnl_convolution_backward_data_primitive_desc_create":    &c.grad_input3,
			"dnnl_convolution_backward_weights_primitive_desc_create": &c.grad_weight3,
		})
	default:
		err = fmt.Errorf("%v is version %d, want 2 or 3", lib, c.major)
	}
	if err != nil {
		return nil, err
	}
	const sequential, openMP = 1, 2
	switch c.runtime {
	case sequential:
		return d, nil
	case openMP:
		if err := find(symbols{"omp_get_max_threads": &c.max_threads, "omp_set_num_threads": &c.set_threads}); err != nil {
			return nil, err
		}
		return d, nil
	}
	return nil, fmt.Errorf("%v is built for threads of kind %d, want OpenMP's", lib, c.runtime)
}

// convPlan is a plan in C's memory.
type convPlan struct {
	c    *C.plan // nil: errUnable
	size int     // of its work area, in bytes
}

// mostPlans bounds the memory of plans in a program whose images have many sizes.
const mostPlans = 512

// plan returns how the library computes c. A plan is made once, because it contains code that is compiled for it.
func (d *oneDNN) plan(c convolution) (*convPlan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, calls := d.plans[c], d.calls
	if p == nil {
		p = &convPlan{}
		q := problemOf(c, int(calls.major))
		switch code := C.make_plan(calls, &q, &p.c); code {
		case C.ok:
			p.size = int(p.c.size)
			runtime.AddCleanup(p, func(c *C.plan) { C.destroy_plan(calls, c) }, p.c) // without d, which holds p
		case C.no_code:
		default:
			d.refused.Do(func() {
				d.log.Warn("cpu: a convolution runs in goddp's own kernels, because oneDNN failed to make code for it",
					"sizes", c.sizes(), "error", int(code))
			})
		}
		if len(d.plans) == mostPlans {
			clear(d.plans)
		}
		d.plans[c] = p
	}
	if p.c == nil {
		return nil, errUnable
	}
	return p, nil
}

// run computes a convolution from images x, a weight w, a result y and a bias, or gradients of them. work has p.size bytes.
func (d *oneDNN) run(p *convPlan, x, w, y, bias, work *float32) error {
	code := C.run_plan(d.calls, p.c, unsafe.Pointer(x), unsafe.Pointer(w), unsafe.Pointer(y), unsafe.Pointer(bias), (*C.char)(unsafe.Pointer(work)))
	runtime.KeepAlive(p)
	if code != C.ok {
		return fmt.Errorf("cpu: a convolution in oneDNN failed with error %d", code)
	}
	return nil
}

func problemOf(c convolution, version int) (q C.problem) {
	set := func(to *[12]C.int64_t, v []int) {
		for i, n := range v {
			to[i] = C.int64_t(n)
		}
	}
	q.kind = C.int(c.of)
	if c.bias {
		q.has_bias = 1
	}
	size := c.sizes()
	stride := strides(size, c.channelsLast, c.whole)
	for i := range size {
		set(&q.size[i], size[i])
		set(&q.stride[i], stride[i])
	}
	last, chooses := c.inner(version)
	for i, s := range strides(size, last, [3]int{c.C, c.InGroup, c.O}) {
		if !chooses[i] {
			set(&q.inner[i], s)
		}
	}
	set((*[12]C.int64_t)(&q.step), c.Stride[:])
	set((*[12]C.int64_t)(&q.dilation), []int{c.Dilation[0] - 1, c.Dilation[1] - 1})
	set((*[12]C.int64_t)(&q.padding), c.Padding[:])
	return q
}
