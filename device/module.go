package device

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Module is a source of CUDA C++ with kernels of the program's own. A GPU compiles it
// at the first launch of one of its kernels, for the floating-point type of that
// launch, keeps the machine code between runs, and loads all of its kernels. So the
// kernel of a backward pass is ready when that of the forward pass has run.
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
// A kernel is a function of two languages, with the same parameters in the same order:
//
//	func swiglu[T float32 | float64](y, x []T, n int)
//
//	template <class T> __device__ void swiglu(T *y, const T *x, i64 n)
//
// The CUDA function runs once in each thread of the grid. Go's types stand for these:
//
//	[]float32, []float64        T *, the floating-point type of the launch
//	[]int32, []int64, []uint8   i32 *, i64 *, u8 *
//	int32, int and int64        i32, i64
//	uint64, float32, float64    u64, float, double
//	Accum                       Accum
//
// In front of the source stands the file device/cuda/kernels/prelude.cu: the types
// i32, i64, u8 and u64; f16 and bf16, which up reads as a float and down<T> rounds one
// to; accumulate, which writes by an Accum; global_thread and global_threads, the number
// of a thread and of all threads; block_sum. The Go function is given the whole tensors
// and no grid; [Accumulate] writes by an Accum.
type Module struct {
	file, source string
	kernels      []*Kernel
}

// NewModule makes a module of a source. file is what a compiler's messages call it, whose
// lines count from the source's first.
func NewModule(file, source string) *Module { return &Module{file: file, source: source} }

// Kernel is a kernel of a [Module].
type Kernel struct {
	module *Module
	name   string
	params []parameter
	cpu    [Float64 + 1]reflect.Value // by the launch's floating-point type
}

// parameter is one of a kernel's. A tensor's dt is Invalid where it is of the launch's
// floating-point type.
type parameter struct {
	t     reflect.Type // of the Go function's
	dt    DType
	name  string // of a tensor, as are the next two
	lead  bool   // the axes begin with "..."
	axes  []axis
	shape string // as the program wrote it
}

// axis is by times the size that name stands for; 0 stands for no name.
type axis struct {
	by   int
	name string
}

// Kernel adds a kernel to the module. name is the CUDA function's. shapes name the
// tensors among the parameters, in their order, with their shapes: a size is a
// number, a name, which is the same size wherever it stands, or a number times a name;
// "..." at the beginning of a shape is any number of axes, the same ones wherever it
// stands. cpu are versions of the Go function, by floating-point type. A program adds
// all kernels before it launches one. Kernel panics where the parts do not fit together.
func (m *Module) Kernel(name, shapes string, cpu ...any) *Kernel {
	k := &Kernel{module: m, name: name}
	if len(cpu) == 0 {
		panic(fmt.Errorf("device: kernel %s: there is no Go function for the CPU", name))
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

// scalars are the types of parameters that are no tensors, as CUDA knows them.
var scalars = map[reflect.Type]string{
	reflect.TypeFor[int]():     "i64",
	reflect.TypeFor[int64]():   "i64",
	reflect.TypeFor[int32]():   "i32",
	reflect.TypeFor[uint64]():  "u64",
	reflect.TypeFor[float32](): "float",
	reflect.TypeFor[float64](): "double",
	reflect.TypeFor[Accum]():   "Accum",
}

// integers are the element types that a slice stands for by itself.
var integers = map[reflect.Type]DType{
	reflect.TypeFor[[]int32](): Int32,
	reflect.TypeFor[[]int64](): Int64,
	reflect.TypeFor[[]uint8](): Uint8,
}

func (p parameter) tensor() bool { return p.t.Kind() == reflect.Slice }

// declared is the parameters of a Go function, and the floating-point type of its
// slices, Float32 where it has none.
func (k *Kernel) declared(f reflect.Type) (params []parameter, dt DType) {
	if f.Kind() != reflect.Func || f.NumOut() > 0 || f.IsVariadic() {
		panic(fmt.Errorf("device: kernel %s: %v is no function without a result", k.name, f))
	}
	for i := range f.NumIn() {
		p := parameter{t: f.In(i), dt: integers[f.In(i)]}
		own := Invalid
		switch p.t {
		case reflect.TypeFor[[]float32]():
			own = Float32
		case reflect.TypeFor[[]float64]():
			own = Float64
		default:
			if p.dt == Invalid && scalars[p.t] == "" {
				panic(fmt.Errorf("device: kernel %s: parameter %d is a %v, which stands for nothing in CUDA", k.name, i, p.t))
			}
		}
		if own != Invalid && dt != Invalid && own != dt {
			panic(fmt.Errorf("device: kernel %s: parameter %d is a %v beside slices of %v", k.name, i, p.t, dt))
		}
		dt = max(dt, own)
		params = append(params, p)
	}
	return params, max(dt, Float32)
}

var (
	shapeSyntax = regexp.MustCompile(`^\s*(\w+)\[([^\[\]]*)\]`)
	axisSyntax  = regexp.MustCompile(`^(\d*)([A-Za-z_]\w*)?$`)
)

// declareShapes reads the shapes of the tensors.
func (k *Kernel) declareShapes(shapes string) {
	rest := shapes
	for i := range k.params {
		p := &k.params[i]
		if !p.tensor() {
			continue
		}
		found := shapeSyntax.FindStringSubmatch(rest)
		if found == nil {
			panic(fmt.Errorf("device: kernel %s: the shapes %q say nothing of parameter %d", k.name, shapes, i))
		}
		rest = rest[len(found[0]):]
		p.name, p.shape = found[1], found[2]
		for j, word := range strings.Fields(p.shape) {
			if word == "..." && j == 0 {
				p.lead = true
				continue
			}
			parts := axisSyntax.FindStringSubmatch(word)
			if parts == nil {
				panic(fmt.Errorf("device: kernel %s: %q in the shape of %s is no size", k.name, word, p.name))
			}
			a := axis{by: 1, name: parts[2]}
			if parts[1] != "" {
				a.by, _ = strconv.Atoi(parts[1]) // digits; one too large fits no tensor
			}
			p.axes = append(p.axes, a)
		}
	}
	if strings.TrimSpace(rest) != "" {
		panic(fmt.Errorf("device: kernel %s: the shapes %q say more than there are tensors: %q", k.name, shapes, rest))
	}
}

// Grid is how many blocks a kernel has, and how many threads each block, along x, y
// and z. Along y and z, 0 counts as 1. A launch of no blocks along x does nothing, on the
// CPU either.
type Grid struct{ Blocks, Threads [3]int }

// flatThreads is the threads of a block of a flat grid, flatBlocks the most blocks that it
// has: enough to fill any GPU.
const (
	flatThreads = 256
	flatBlocks  = 1 << 14
)

// Flat is a grid along x for n independent items. A kernel goes through them from
// global_thread() on, in steps of global_threads(): for many items these are fewer.
func Flat(n int) Grid {
	blocks := min((n+flatThreads-1)/flatThreads, flatBlocks)
	return Grid{Blocks: [3]int{blocks}, Threads: [3]int{flatThreads}}
}

// What every GPU launches.
var (
	mostBlocks  = [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	mostThreads = [3]int{1024, 1024, 64}
)

// full returns g with 1 in place of each 0 along y and z.
func (g Grid) full() Grid {
	for i := 1; i < 3; i++ {
		g.Blocks[i], g.Threads[i] = cmp.Or(g.Blocks[i], 1), cmp.Or(g.Threads[i], 1)
	}
	return g
}

// check panics unless every GPU launches g.
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

// LaunchError is the panic value of a [Kernels] launch whose grid or arguments do not
// fit the kernel.
type LaunchError struct {
	Kernel    string
	What      string // what does not fit: a tensor by its name, "argument 2"
	Got, Want string
}

func (e *LaunchError) Error() string {
	return fmt.Sprintf("kernel %s: %s is %s, want %s", e.Kernel, e.What, e.Got, e.Want)
}

// CompileError says that a program's own source does not compile. Its lines are those of
// the source.
type CompileError struct {
	File string
	Log  string // all that the compiler said
}

// Error is the first error among the compiler's messages.
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

// check panics with a [*LaunchError] if grid or arguments do not fit the kernel. It
// returns the launch's floating-point type, Float32 if no tensor has one.
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

// sizes are what the names in the shapes of one launch stand for.
type sizes struct {
	lead  Shape // nil before the first "..."
	named map[string]int
	names []string // in the order of their first use
}

// fit tells whether a tensor's shape is what was declared, and learns from it.
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

// Run launches the kernel as [Kernels] says, by its Go function: the tensors are in the
// host's memory. A device of the host's cores calls it. Run panics with a [*DTypeError] if
// the Go function has no version for the floating-point type of the tensors.
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

// cudaTypes are the names of element types in kernels/prelude.cu.
var cudaTypes = [...]string{
	Float32: "float", Float64: "double", Float16: "f16", BFloat16: "bf16", Int32: "i32", Int64: "i64", Uint8: "u8",
}

// Launch is what a GPU runs for one launch of a kernel: the function Function of the
// module's program for a floating-point type ([Module.Program]), over the grid, on one
// structure of 64-bit Arguments.
type Launch struct {
	Module    *Module
	DType     DType
	Function  string
	Grid      Grid // no block along x, or at least one block and one thread along each axis
	Arguments []uint64
}

// Launch returns what a GPU runs to launch the kernel as [Kernels] says. addr returns the
// address of a tensor.
func (k *Kernel) Launch(g Grid, args []any, addr func(Tensor) uint64) Launch {
	dt := k.check(g, args)
	return Launch{Module: k.module, DType: dt, Function: k.entry(), Grid: g.full(), Arguments: arguments(args, addr)}
}

// Program is a module in CUDA C++ for one floating-point type.
type Program struct {
	File      string // the name of the source in a compiler's messages
	Text      string
	Functions []string // the __global__ functions, one for each kernel
}

// Program returns the module's program for a floating-point type: the source, and behind
// it for each kernel a __global__ function that takes the arguments of a [Launch].
func (m *Module) Program(dt DType) Program {
	p := Program{File: m.file}
	var b strings.Builder
	fmt.Fprintf(&b, "#line 1 %q\n%s\n", m.file, m.source)
	for _, k := range m.kernels {
		fmt.Fprintf(&b, "#line 1 \"launch of %s for %v, in %s\"\n", k.name, dt, m.file)
		var fields, args []string
		words := 0
		for i, p := range k.params {
			field, arg := "u64", ""
			words++
			switch kind := scalars[p.t]; {
			case p.tensor():
				element := p.dt
				if element == Invalid {
					element = dt
				}
				arg = "(" + cudaTypes[element] + " *)"
			case kind == "Accum":
				field = kind
				words++
			case kind == "float", kind == "double":
				field, arg = "double", "("+kind+")"
			default:
				field, arg = "i64", "("+kind+")"
			}
			fields = append(fields, fmt.Sprintf("%s p%d;", field, i))
			args = append(args, fmt.Sprintf("%sa.p%d", arg, i))
		}
		if words < leastWords {
			fields = append(fields, fmt.Sprintf("u64 rest[%d];", leastWords-words))
		}
		fmt.Fprintf(&b, "struct %[1]s_args { %[2]s }; extern \"C\" __global__ void %[1]s(const %[1]s_args a) { %[3]s(%[4]s); }\n",
			k.entry(), strings.Join(fields, " "), k.name, strings.Join(args, ", "))
		p.Functions = append(p.Functions, k.entry())
	}
	p.Text = b.String()
	return p
}

// leastWords is the minimum size of the argument structure, in words of 8 bytes. A larger
// structure than two words is passed in memory by the host's calling conventions, which
// is how the emulation of a GPU passes it.
const leastWords = 3

// entry returns the name of the kernel's __global__ function.
func (k *Kernel) entry() string { return "goddp_launch_" + k.name }

// arguments returns args, which check accepted, as the fields of the structure that the
// __global__ function takes.
func arguments(args []any, addr func(Tensor) uint64) []uint64 {
	words := make([]uint64, 0, max(len(args)+2, leastWords))
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
	for len(words) < leastWords {
		words = append(words, 0)
	}
	return words
}
