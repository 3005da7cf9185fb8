package device

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Module is CUDA C++ source with custom kernels. It is compiled at the first launch of one of its
// kernels, for the floating-point type of that launch. All kernels of the module are loaded at once,
// so launching a forward kernel also loads the backward kernel. The machine code is cached on disk.
//
//	//go:embed swiglu.cu
//	var source string
//
//	var (
//		module   = device.NewModule("swiglu.cu", source)
//		forward  = module.Kernel("swiglu", "y[... n] x[... 2n]", swiglu[float32], swiglu[float64])
//		backward = module.Kernel("swiglu_grad", "dx[... 2n] g[... n] x[... 2n]", swigluGrad[float32], swigluGrad[float64])
//	)
//
// A kernel is written twice, in Go and in CUDA C++, with the same parameters in the same order:
//
//	func swiglu[T float32 | float64](y, x []T, n int)
//
//	template <class T> __device__ void swiglu(T *y, const T *x, i64 n)
//
// The CUDA function runs once in each thread of the grid. The Go function is called once, with
// whole tensors and no grid. The parameter types correspond as follows:
//
//	[]float32, []float64        T *, the floating-point type of the launch
//	[]int32, []int64, []uint8   i32 *, i64 *, u8 *
//	int32, int and int64        i32, i64
//	uint64, float32, float64    u64, float, double
//	Accum                       Accum
//
// The file device/cuda/kernels/prelude.cu is compiled in front of the source. It defines the types
// i32, i64, u8, u64, f16 and bf16; up, which converts to float, and down<T>, which rounds to a 16-bit
// type; accumulate, which writes by an Accum, as [Accumulate] does in Go; global_thread and
// global_threads, the number of the thread and the count of threads in the grid; and block_sum.
type Module struct {
	file, source string
	kernels      []*Kernel
}

// NewModule returns a module of the given source. Compiler messages name the source by file and
// count its lines from 1.
func NewModule(file, source string) *Module { return &Module{file: file, source: source} }

// Kernel is a kernel of a [Module].
type Kernel struct {
	module *Module
	name   string
	params []parameter
	cpu    [Float64 + 1]reflect.Value // the Go functions, by floating-point type
}

// parameter is a parameter of a kernel. dt is the element type of a tensor. It is Invalid if the tensor has the
// launch's floating-point type.
type parameter struct {
	t     reflect.Type // in the Go function
	dt    DType
	name  string // name, lead, axes and shape are for tensors
	lead  bool   // whether the shape begins with "..."
	axes  []axis
	shape string // as declared
}

// axis is a declared size. It is the number by, times the size called name unless name is empty.
type axis struct {
	by   int
	name string
}

// Kernel adds a kernel to the module. name is the name of the CUDA function. shapes declares the tensors among
// the parameters, in their order, with their shapes. A size in a shape is a number, a name, or a
// number times a name; equal names mean equal sizes. A leading "..." matches any number of axes; in all
// shapes of the kernel it matches the same axes. cpu is the Go function in one or two floating-point types. All
// kernels of a module must be added before one is launched. Kernel panics if the declarations are
// inconsistent.
func (m *Module) Kernel(name, shapes string, cpu ...any) *Kernel {
	k := &Kernel{module: m, name: name}
	if len(cpu) == 0 {
		panic(fmt.Errorf("device: kernel %s: no Go function, want one for the CPU", name))
	}
	for i, f := range cpu {
		v := reflect.ValueOf(f)
		params, dt := k.declared(v.Type())
		if i == 0 {
			k.params = params
		}
		same := func(a, b parameter) bool {
			return a.dt == b.dt && (a.t == b.t || a.dt == Invalid && a.tensor() && b.tensor())
		}
		if !slices.EqualFunc(params, k.params, same) {
			panic(fmt.Errorf("device: kernel %s: the Go functions %T and %T differ in more than the floating-point type", name, cpu[0], f))
		}
		k.cpu[dt] = v
	}
	k.declareShapes(shapes)
	m.kernels = append(m.kernels, k)
	return k
}

// scalars maps the types of parameters that are not tensors to their names in CUDA.
var scalars = map[reflect.Type]string{
	reflect.TypeFor[int]():     "i64",
	reflect.TypeFor[int64]():   "i64",
	reflect.TypeFor[int32]():   "i32",
	reflect.TypeFor[uint64]():  "u64",
	reflect.TypeFor[float32](): "float",
	reflect.TypeFor[float64](): "double",
	reflect.TypeFor[Accum]():   "Accum",
}

// integers are the slices whose element type is fixed.
var integers = map[reflect.Type]DType{
	reflect.TypeFor[[]int32](): Int32,
	reflect.TypeFor[[]int64](): Int64,
	reflect.TypeFor[[]uint8](): Uint8,
}

func (p parameter) tensor() bool { return p.t.Kind() == reflect.Slice }

// declared returns the parameters of a Go function, and the floating-point type of its slices,
// Float32 if it has none.
func (k *Kernel) declared(f reflect.Type) (params []parameter, dt DType) {
	if f.Kind() != reflect.Func || f.NumIn() == 0 || f.NumOut() > 0 || f.IsVariadic() {
		panic(fmt.Errorf("device: kernel %s: got a %v, want a function with parameters and without results", k.name, f))
	}
	for i := range f.NumIn() {
		p := parameter{t: f.In(i), dt: integers[f.In(i)]}
		float := Invalid
		switch p.t {
		case reflect.TypeFor[[]float32]():
			float = Float32
		case reflect.TypeFor[[]float64]():
			float = Float64
		default:
			if p.dt == Invalid && scalars[p.t] == "" {
				panic(fmt.Errorf("device: kernel %s: parameter %d has type %v, which CUDA does not have", k.name, i, p.t))
			}
		}
		if float != Invalid && dt != Invalid && float != dt {
			panic(fmt.Errorf("device: kernel %s: parameter %d has type %v, but earlier slices are of %v", k.name, i, p.t, dt))
		}
		dt = max(dt, float)
		params = append(params, p)
	}
	return params, max(dt, Float32)
}

// declareShapes parses the shapes of the tensors.
func (k *Kernel) declareShapes(shapes string) {
	rest := shapes
	for i := range k.params {
		p := &k.params[i]
		if !p.tensor() {
			continue
		}
		name, behind, opened := strings.Cut(rest, "[")
		shape, behind, closed := strings.Cut(behind, "]")
		name = strings.TrimSpace(name)
		if !opened || !closed || name == "" || !isWord(name) || strings.Contains(shape, "[") {
			panic(fmt.Errorf("device: kernel %s: the shapes %q do not declare parameter %d", k.name, shapes, i))
		}
		p.name, p.shape, rest = name, shape, behind
		for j, size := range strings.Fields(p.shape) {
			if size == "..." && j == 0 {
				p.lead = true
				continue
			}
			a := axis{by: 1, name: strings.TrimLeft(size, digits)}
			if !isWord(a.name) {
				panic(fmt.Errorf("device: kernel %s: invalid size %q in the shape of %s", k.name, size, p.name))
			}
			if number := strings.TrimSuffix(size, a.name); number != "" {
				a.by, _ = strconv.Atoi(number) // a number that is too large matches no tensor
			}
			p.axes = append(p.axes, a)
		}
	}
	if strings.TrimSpace(rest) != "" {
		panic(fmt.Errorf("device: kernel %s: the shapes %q declare more tensors than the function has: %q", k.name, shapes, rest))
	}
}

const digits = "0123456789"

// isWord reports whether s has only ASCII letters, digits and underscores.
func isWord(s string) bool {
	return strings.Trim(s, digits+"_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// Grid is the number of blocks of a launch, and of threads in each block, along x, y and z. Along y
// and z, 0 counts as 1. A launch with 0 blocks along x does nothing, on the CPU as well.
type Grid struct{ Blocks, Threads [3]int }

// flatThreads is the number of threads in a block of a flat grid. flatBlocks is the maximum number
// of its blocks, which is enough to fill any GPU.
const (
	flatThreads = 256
	flatBlocks  = 1 << 14
)

// Flat returns a grid along x for n independent items. A kernel starts at item global_thread() and
// advances by global_threads(), because for many items the grid has fewer threads than items.
func Flat(n int) Grid {
	blocks := min((n+flatThreads-1)/flatThreads, flatBlocks)
	return Grid{Blocks: [3]int{blocks}, Threads: [3]int{flatThreads}}
}

// The limits of every GPU for blocks, and threads in a block, along x, y and z.
var (
	mostBlocks  = [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	mostThreads = [3]int{1024, 1024, 64}
)

// full returns g with each 0 along y and z replaced by 1.
func (g Grid) full() Grid {
	for i := 1; i < 3; i++ {
		g.Blocks[i], g.Threads[i] = cmp.Or(g.Blocks[i], 1), cmp.Or(g.Threads[i], 1)
	}
	return g
}

// check panics with a [*LaunchError] unless every GPU can launch g.
func (g Grid) check(kernel string) {
	g = g.full()
	for i, along := range []string{"x", "y", "z"} {
		if n := g.Blocks[i]; n < 0 || n > mostBlocks[i] {
			panic(&LaunchError{kernel, "the number of blocks along " + along, strconv.Itoa(n), fmt.Sprintf("at most %d", mostBlocks[i])})
		}
		if n := g.Threads[i]; n < 1 || n > mostThreads[i] {
			panic(&LaunchError{kernel, "the number of threads along " + along, strconv.Itoa(n), fmt.Sprintf("1 to %d", mostThreads[i])})
		}
	}
	if n := g.Threads[0] * g.Threads[1] * g.Threads[2]; n > mostThreads[0] {
		panic(&LaunchError{kernel, "the number of threads of a block", strconv.Itoa(n), fmt.Sprintf("at most %d", mostThreads[0])})
	}
}

// LaunchError is the panic value of a launch with an invalid grid or invalid arguments.
type LaunchError struct {
	Kernel    string
	What      string // the invalid part: a tensor's name, "argument 2"
	Got, Want string
}

func (e *LaunchError) Error() string {
	return fmt.Sprintf("kernel %s: %s is %s, want %s", e.Kernel, e.What, e.Got, e.Want)
}

// CompileError reports that the source of a [Module] does not compile. Line numbers refer to the
// module's source.
type CompileError struct {
	File string
	Log  string // the compiler's whole output
}

// Error returns the first error in the compiler's output.
func (e *CompileError) Error() string {
	first := e.Log
	for line := range strings.Lines(e.Log) {
		if strings.Contains(line, "error") {
			first = line
			break
		}
	}
	return fmt.Sprintf("%s does not compile: %s", e.File, strings.TrimSpace(first))
}

// check panics with a [*LaunchError] if the grid or the arguments are invalid. It returns the
// launch's floating-point type, or Float32 if no tensor has such a type.
func (k *Kernel) check(g Grid, args []any) DType {
	g.check(k.name)
	if len(args) != len(k.params) {
		panic(&LaunchError{k.name, "the number of arguments", strconv.Itoa(len(args)), strconv.Itoa(len(k.params))})
	}
	dt := Invalid
	sizes := sizes{named: map[string]int{}}
	for i, p := range k.params {
		if !p.tensor() {
			if t := reflect.TypeOf(args[i]); t != p.t {
				panic(&LaunchError{k.name, fmt.Sprintf("argument %d", i), fmt.Sprint(t), p.t.String()})
			}
			continue
		}
		t, ok := args[i].(Tensor)
		if !ok {
			panic(&LaunchError{k.name, p.name, fmt.Sprintf("%T", args[i]), "a tensor"})
		}
		want := p.dt
		if want == Invalid {
			if dt == Invalid && t.DType.IsFloat() {
				dt = t.DType
			}
			want = dt
		}
		if want == Invalid || t.DType != want {
			text := fmt.Sprintf("a tensor of %v", want)
			if want == Invalid {
				text = "a tensor of a floating-point type"
			}
			panic(&LaunchError{k.name, p.name, t.String(), text})
		}
		if !sizes.fit(p, t.Shape) {
			panic(&LaunchError{k.name, p.name, t.Shape.String(), "[" + p.shape + "]" + sizes.String()})
		}
	}
	return max(dt, Float32)
}

// sizes maps the names in a kernel's shapes to the sizes in one launch.
type sizes struct {
	lead  Shape // nil before the first "..."
	named map[string]int
	names []string // in the order of their first use
}

// fit reports whether shape matches p's declaration. It records the sizes of new names.
func (s *sizes) fit(p parameter, shape Shape) bool {
	lead := len(shape) - len(p.axes)
	if lead < 0 || lead > 0 && !p.lead {
		return false
	}
	if p.lead {
		if s.lead == nil {
			s.lead = append(Shape{}, shape[:lead]...)
		}
		if !s.lead.Equal(shape[:lead]) {
			return false
		}
	}
	for i, a := range p.axes {
		n := shape[lead+i]
		if a.name == "" {
			if n != a.by {
				return false
			}
			continue
		}
		known, ok := s.named[a.name]
		if !ok {
			known = n / max(a.by, 1)
			s.named[a.name], s.names = known, append(s.names, a.name)
		}
		if n != a.by*known {
			return false
		}
	}
	return true
}

func (s *sizes) String() string {
	var known []string
	if s.lead != nil {
		known = append(known, fmt.Sprintf("... = %v", s.lead))
	}
	for _, name := range s.names {
		known = append(known, fmt.Sprintf("%s = %d", name, s.named[name]))
	}
	if len(known) == 0 {
		return ""
	}
	return " with " + strings.Join(known, ", ")
}

// Run implements [Kernels].Launch on the host's cores: it calls the Go function on tensors in host
// memory. Run panics with a [*DTypeError] if the Go function has no version for the floating-point
// type of the tensors.
func (k *Kernel) Run(g Grid, args []any) {
	dt := k.check(g, args)
	if g.Blocks[0] == 0 {
		return
	}
	var f reflect.Value
	if int(dt) < len(k.cpu) {
		f = k.cpu[dt]
	}
	if !f.IsValid() {
		var versions []DType
		for v := range k.cpu {
			if k.cpu[v].IsValid() {
				versions = append(versions, DType(v))
			}
		}
		panic(&DTypeError{Op: k.name, Got: dt, Want: versions[0], Computes: versions})
	}
	in := make([]reflect.Value, len(args))
	for i, a := range args {
		t, ok := a.(Tensor)
		switch {
		case !ok:
			in[i] = reflect.ValueOf(a)
		case t.DType == Float32:
			in[i] = reflect.ValueOf(Elements[float32](t))
		case t.DType == Float64:
			in[i] = reflect.ValueOf(Elements[float64](t))
		case t.DType == Int32:
			in[i] = reflect.ValueOf(Elements[int32](t))
		case t.DType == Int64:
			in[i] = reflect.ValueOf(Elements[int64](t))
		default:
			in[i] = reflect.ValueOf(Elements[uint8](t))
		}
	}
	f.Call(in)
}

// cudaTypes are the names of the element types in kernels/prelude.cu.
var cudaTypes = [...]string{
	Float32: "float", Float64: "double", Float16: "f16", BFloat16: "bf16", Int32: "i32", Int64: "i64", Uint8: "u8",
}

// Launch prepares a launch of the kernel on a GPU, with the meaning of [Kernels].Launch. It returns the module, the
// floating-point type, the function of the module's program for this type ([Module.Program]), and the function's
// argument, a structure of 64-bit words. addr returns the address of a tensor.
func (k *Kernel) Launch(g Grid, args []any, addr func(Tensor) uint64) (m *Module, dt DType, function string, words []uint64) {
	dt = k.check(g, args)
	return k.module, dt, k.entry(), arguments(args, addr)
}

// Program returns the module in CUDA C++ for a floating-point type. text is the source, followed by a __global__
// function for each kernel, which takes the words of [Kernel.Launch]. file is the source's name in the compiler's
// messages.
func (m *Module) Program(dt DType) (file, text string, functions []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "#line 1 %q\n%s\n", m.file, m.source)
	for _, k := range m.kernels {
		fmt.Fprintf(&b, "#line 1 \"launch of %s for %v, in %s\"\n", k.name, dt, m.file)
		var fields, args []string
		for i, p := range k.params {
			field, arg := "u64", ""
			switch kind := scalars[p.t]; {
			case p.tensor():
				element := p.dt
				if element == Invalid {
					element = dt
				}
				arg = "(" + cudaTypes[element] + " *)"
			case kind == "Accum":
				field = kind
			case kind == "float", kind == "double":
				field, arg = "double", "("+kind+")"
			default:
				field, arg = "i64", "("+kind+")"
			}
			fields = append(fields, fmt.Sprintf("%s p%d;", field, i))
			args = append(args, fmt.Sprintf("%sa.p%d", arg, i))
		}
		fmt.Fprintf(&b, "struct %[1]s_args { %[2]s }; extern \"C\" __global__ void %[1]s(const %[1]s_args a) { %[3]s(%[4]s); }\n",
			k.entry(), strings.Join(fields, " "), k.name, strings.Join(args, ", "))
		functions = append(functions, k.entry())
	}
	return m.file, b.String(), functions
}

// entry returns the name of the kernel's __global__ function.
func (k *Kernel) entry() string { return "goddp_launch_" + k.name }

// arguments returns args, which check accepted, as the fields of the structure that the
// __global__ function takes.
func arguments(args []any, addr func(Tensor) uint64) []uint64 {
	words := make([]uint64, 0, len(args)+2)
	for _, a := range args {
		switch a := a.(type) {
		case Tensor:
			words = append(words, addr(a))
		case Accum:
			words = append(words, math.Float64bits(a.Alpha), math.Float64bits(a.Beta))
		case float32:
			words = append(words, math.Float64bits(float64(a)))
		case float64:
			words = append(words, math.Float64bits(a))
		case uint64:
			words = append(words, a)
		default:
			words = append(words, uint64(reflect.ValueOf(a).Int()))
		}
	}
	return words
}
