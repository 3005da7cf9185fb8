package nn

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Parameter is a variable that training changes, with its name in a module. A module that contains other
// modules returns their parameters with longer names, as new Parameters of the same variables.
type Parameter struct {
	name string
	*value
}

// NewParameter returns a parameter of v, a leaf. v requires a gradient from now on.
func NewParameter(name string, v *autograd.Variable) *Parameter {
	return &Parameter{name, placed(name, v.RequireGrad())}
}

// NewPart returns a parameter of v, a leaf that holds some of the elements of whole. An optimizer gets
// such a parameter if the elements are divided among ranks. Its name and its shape are those of whole;
// its Var and its Grad have v's shape. v requires a gradient from now on.
func NewPart(whole *Parameter, v *autograd.Variable) *Parameter {
	p := NewParameter(whole.name, v)
	p.shape, p.whole = whole.shape, whole.Var()
	return p
}

// NewUnplacedParameter returns a parameter without a variable. [Place] makes the variable, and init
// writes its first values.
func NewUnplacedParameter(name string, init Init, dt device.DType, shape ...int) *Parameter {
	if slices.ContainsFunc(shape, func(n int) bool { return n < 0 }) {
		panic(fmt.Sprintf("nn: parameter %q of shape %v: want no size below 0", name, shape))
	}
	return &Parameter{name, &value{init: init, dtype: dt, shape: shape}}
}

// Name returns the parameter's name in the module that returned the parameter.
func (p *Parameter) Name() string { return p.name }

// Grad returns the gradient, nil if there is none: see [autograd.Variable.Grad]. With package ddp/zero it is defined in
// this rank's part alone: see [autograd.Variable.GradDivided].
func (p *Parameter) Grad() *autograd.Variable { return p.variable(p.name).Grad() }

// Var returns the variable. It panics with an [*UnplacedError] if the parameter is not placed.
func (p *Parameter) Var() *autograd.Variable { return p.variable(p.name) }

// IsPart reports whether the parameter is a part of another: see [NewPart].
func (p *Parameter) IsPart() bool { return p.whole != nil }

// Identity returns a value that is equal for all Parameters of the same variable, and different for
// others. Code that changes each variable once compares identities. Placing a parameter changes its
// identity.
func (p *Parameter) Identity() any {
	if p.v != nil {
		return p.v
	}
	return p.value
}

// Item returns the only element: see [autograd.Variable.Item].
func (p *Parameter) Item() float64 { return p.variable(p.name).Item() }

// Freeze excludes the parameter from training until Unfreeze: it gets no gradient, and no optimizer
// changes it. It may be called before or after the parameter is placed. Package ddp documents when the
// parameters of a distributed model may be frozen.
func (p *Parameter) Freeze() {
	if p.frozen = true; p.v != nil {
		p.v.Freeze()
	}
}

// Unfreeze includes the parameter in training again.
func (p *Parameter) Unfreeze() {
	if p.frozen = false; p.v != nil {
		p.v.RequireGrad()
	}
}

// Frozen reports whether the parameter gets no gradient.
func (p *Parameter) Frozen() bool {
	if p.v != nil {
		return !p.v.RequiresGrad()
	}
	return p.frozen
}

func (p *Parameter) String() string { return p.describe(p.name) }

// Buffer is a variable of a module's state that is not a parameter, with its name in the module.
type Buffer struct {
	name string
	*value
	span *Span // nil if the variable holds all elements
}

// Span states which elements of a tensor of shape Whole a variable holds: the elements Lo to Hi-1, in
// row-major order.
type Span struct {
	Whole  device.Shape
	Lo, Hi int
}

// NewBuffer returns a buffer of v, a leaf.
func NewBuffer(name string, v *autograd.Variable) *Buffer {
	return &Buffer{name: name, value: placed(name, v)}
}

// Divided returns the same buffer, marked as the elements s of a tensor that is divided among ranks.
func (b *Buffer) Divided(s Span) *Buffer {
	return &Buffer{b.name, b.value, &s}
}

// Span returns the elements of a tensor that the buffer holds. divided is false if it holds all of them.
func (b *Buffer) Span() (s Span, divided bool) {
	if b.span != nil {
		return *b.span, true
	}
	return Span{Whole: b.shape, Hi: b.shape.Len()}, false
}

// NewUnplacedBuffer returns a buffer without a variable. [Place] makes the variable, and init writes its
// first values.
func NewUnplacedBuffer(name string, init Init, dt device.DType, shape ...int) *Buffer {
	return &Buffer{name: name, value: &value{init: init, dtype: dt, shape: shape}}
}

// Name returns the buffer's name in the module that returned the buffer.
func (b *Buffer) Name() string { return b.name }

// Var returns the variable. It panics with an [*UnplacedError] if the buffer is not placed.
func (b *Buffer) Var() *autograd.Variable { return b.variable(b.name) }

func (b *Buffer) String() string { return b.describe(b.name) }

// Init enqueues a kernel on dev's compute stream that writes the first values of a new variable. Random
// values are the numbers from offset on in the sequence that seed selects.
type Init func(dev device.Device, dst device.Tensor, seed, offset uint64) error

// Uniform draws values from [lo, hi).
func Uniform(lo, hi float64) Init {
	return func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
		return kernels.Of(dev).Uniform(dev.Compute(), dst, lo, hi, seed, offset)
	}
}

// Normal draws values from the normal distribution.
func Normal(mean, std float64) Init {
	return func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
		return kernels.Of(dev).Normal(dev.Compute(), dst, mean, std, seed, offset)
	}
}

// Constant sets all values to x.
func Constant(x float64) Init {
	return func(dev device.Device, dst device.Tensor, _, _ uint64) error {
		return dev.Kernels().Fill(dev.Compute(), dst, x)
	}
}

// UnplacedError is the panic value of the use of a parameter or buffer that [Place] has not placed.
type UnplacedError struct{ Name string }

func (e *UnplacedError) Error() string {
	return fmt.Sprintf("nn: %s is on no device yet. If its module is a part of a model, the model has to register it by nn.Add; else Place it", e.Name)
}

// value is the content of a parameter or a buffer, shared by all its names.
type value struct {
	shape device.Shape
	dtype device.DType
	init  Init
	v     *autograd.Variable // nil before Place
	path  string             // its name in the outermost model, for messages; empty before Add

	whole  *autograd.Variable // of a part: the variable that its own has elements of; else nil
	master master             // of a parameter in 16 bits; mostly there is none

	frozen bool // whether Place leaves the parameter without a gradient
}

func placed(name string, v *autograd.Variable) *value {
	return &value{shape: v.Shape(), dtype: v.DType(), v: v.SetName(name)}
}

// Shape returns the shape; for a part ([NewPart]) that of the whole. The caller must not change it.
func (v *value) Shape() device.Shape { return v.shape }

// DType returns the type of the elements.
func (v *value) DType() device.DType { return v.dtype }

// Placed reports whether there is a variable.
func (v *value) Placed() bool { return v.v != nil }

func (v *value) variable(name string) *autograd.Variable {
	if v.v == nil {
		panic(&UnplacedError{cmp.Or(v.path, name)})
	}
	return v.v
}

// rename sets the name for messages.
func (v *value) rename(path string) {
	if v.path = path; v.v != nil {
		v.v.SetName(path)
	}
}

func (v *value) describe(name string) string {
	return fmt.Sprintf("%s %v%v", name, v.dtype, v.shape)
}

// place makes the variable if there is none.
func (v *value) place(dev device.Device, name string, seed, offset uint64) error {
	if v.v != nil {
		if on := v.v.Device(); on != dev {
			panic(&autograd.DeviceError{Op: "Place of " + name, A: on.String(), B: dev.String()})
		}
		return v.v.Err()
	}
	initial := v.dtype
	if initial.Size() == 2 {
		initial = device.Float32 // the same numbers as if Cast converted it later
	}
	first := autograd.Zeros(dev, initial, v.shape...)
	if err := first.Err(); err != nil {
		return err
	}
	if err := v.init(dev, first.Tensor(), seed, offset); err != nil {
		return err
	}
	made, err := converted(first, v.dtype)
	if err != nil {
		return err
	}
	if made != first {
		first.Free()
	}
	v.v = made.SetName(cmp.Or(v.path, name))
	return nil
}

// cast changes the type, and converts the variable if there is one.
func (v *value) cast(dt device.DType) error {
	if v.v != nil {
		made, err := converted(v.v, dt)
		if err != nil {
			return err
		}
		switch made.SetName(v.v.Name()); {
		case v.v.RequiresGrad():
			made.RequireGrad()
		case v.frozen && dt.IsFloat():
			made.RequireGrad().Freeze()
		}
		v.v = made
	}
	v.dtype = dt
	return nil
}

// converted returns x converted to the type dt, or x itself if it has that type.
func converted(x *autograd.Variable, dt device.DType) (*autograd.Variable, error) {
	if x.DType() == dt {
		return x, nil
	}
	dev := x.Device()
	made := autograd.Zeros(dev, dt, x.Shape()...)
	if err := made.Err(); err != nil {
		return nil, err
	}
	return made, dev.Kernels().Copy(dev.Compute(), made.Tensor(), x.Tensor())
}
