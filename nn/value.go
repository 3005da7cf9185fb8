package nn

import (
	"cmp"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Parameter is a variable that training changes, by its name within a module.
// A module that holds others gives their parameters longer names, as further
// Parameters over the same variables.
type Parameter struct {
	name string
	*value
}

// NewParameter makes a parameter of v, a leaf, which from now on requires a
// gradient.
func NewParameter(name string, v *autograd.Variable) *Parameter {
	return &Parameter{name, placed(name, v.RequireGrad())}
}

// NewPart is a parameter over v, a leaf that holds some elements of whole, as an
// optimizer is given it where elements are divided among ranks. It has the name and the
// shape of whole; its Var, and its Grad, are of v's shape. v requires a gradient from
// now on.
func NewPart(whole *Parameter, v *autograd.Variable) *Parameter {
	p := NewParameter(whole.name, v)
	p.shape = whole.shape
	return p
}

// NewUnplacedParameter is a parameter that [Place] makes the variable of, with
// first values by init.
func NewUnplacedParameter(name string, init Init, dt device.DType, shape ...int) *Parameter {
	return &Parameter{name, &value{init: init, dtype: dt, shape: shape}}
}

// Name is the parameter's name within the module that it was got from.
func (p *Parameter) Name() string { return p.name }

// Grad is the gradient, nil while there is none: see [autograd.Variable.Grad].
func (p *Parameter) Grad() *autograd.Variable { return p.variable(p.name).Grad() }

// Var is the variable. It panics with an [*UnplacedError] before there is one.
func (p *Parameter) Var() *autograd.Variable { return p.variable(p.name) }

// Identity is equal for all Parameters over one variable, and for no others: what
// changes each variable once goes by it. It is that of the variable, or before there
// is one, of what [Place] will make.
func (p *Parameter) Identity() any {
	if p.v != nil {
		return p.v
	}
	return p.value
}

// Item is the one element: see [autograd.Variable.Item].
func (p *Parameter) Item() float64 { return p.variable(p.name).Item() }

// Freeze makes the parameter one that gets no gradient and that no optimizer
// changes, until Unfreeze. It may have its place already, or stays frozen when
// its module is placed. See package ddp for when a distributed model may be
// frozen.
func (p *Parameter) Freeze() {
	if p.frozen = true; p.v != nil {
		p.v.Freeze()
	}
}

// Unfreeze has the parameter trained again.
func (p *Parameter) Unfreeze() {
	if p.frozen = false; p.v != nil {
		p.v.RequireGrad()
	}
}

// Frozen tells whether the parameter gets no gradient.
func (p *Parameter) Frozen() bool {
	if p.v != nil {
		return !p.v.RequiresGrad()
	}
	return p.frozen
}

func (p *Parameter) String() string { return p.describe(p.name) }

// Buffer is a variable that is part of a module's state and no parameter, by
// its name within a module.
type Buffer struct {
	name string
	*value
	span *Span // nil: the variable is whole
}

// A Span says which elements of a tensor of shape Whole a variable holds: Lo to Hi, in
// row-major order.
type Span struct {
	Whole  device.Shape
	Lo, Hi int
}

// NewBuffer makes a buffer of v, a leaf.
func NewBuffer(name string, v *autograd.Variable) *Buffer {
	return &Buffer{name: name, value: placed(name, v)}
}

// Divided is the same buffer, marked as the elements s of a tensor that is divided among
// ranks.
func (b *Buffer) Divided(s Span) *Buffer {
	return &Buffer{b.name, b.value, &s}
}

// Span says which elements of a tensor the buffer holds: all, unless it is Divided.
func (b *Buffer) Span() (s Span, divided bool) {
	if b.span != nil {
		return *b.span, true
	}
	return Span{Whole: b.shape, Hi: b.shape.Len()}, false
}

// NewUnplacedBuffer is a buffer that [Place] makes the variable of, with first
// values by init.
func NewUnplacedBuffer(name string, init Init, dt device.DType, shape ...int) *Buffer {
	return &Buffer{name: name, value: &value{init: init, dtype: dt, shape: shape}}
}

// Name is the buffer's name within the module that it was got from.
func (b *Buffer) Name() string { return b.name }

// Var is the variable. It panics with an [*UnplacedError] before there is one.
func (b *Buffer) Var() *autograd.Variable { return b.variable(b.name) }

func (b *Buffer) String() string { return b.describe(b.name) }

// Init enqueues, on dev's compute stream, what writes a new variable's first
// values: random ones are numbers offset and following of the sequence that
// seed selects.
type Init func(dev device.Device, dst device.Tensor, seed, offset uint64) error

// Uniform draws values from [lo, hi).
func Uniform(lo, hi float64) Init {
	return func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
		return kernels.Of(dev).Uniform(dev.Compute(), dst, lo, hi, seed, offset)
	}
}

// Normal draws values of the normal distribution.
func Normal(mean, std float64) Init {
	return func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
		return kernels.Of(dev).Normal(dev.Compute(), dst, mean, std, seed, offset)
	}
}

// Constant makes all values x.
func Constant(x float64) Init {
	return func(dev device.Device, dst device.Tensor, _, _ uint64) error {
		return dev.Kernels().Fill(dev.Compute(), dst, x)
	}
}

// UnplacedError is the panic value of using a parameter or a buffer that has
// no place on any device yet.
type UnplacedError struct{ Name string }

func (e *UnplacedError) Error() string {
	return fmt.Sprintf("nn: %s is on no device yet: Place its module", e.Name)
}

// value is what a parameter or a buffer is, under whatever names.
type value struct {
	shape device.Shape
	dtype device.DType
	init  Init
	v     *autograd.Variable // nil before it has a place
	path  string             // its name in the outermost model, for messages; empty before Add

	frozen bool // of a parameter without a place: it gets no gradient when it has one
}

func placed(name string, v *autograd.Variable) *value {
	return &value{shape: v.Shape(), dtype: v.DType(), v: v.SetName(name)}
}

// Shape is the shape, of a part that of the whole ([NewPart]); the caller must not
// change it.
func (v *value) Shape() device.Shape { return v.shape }

// DType is the type of the elements.
func (v *value) DType() device.DType { return v.dtype }

// Placed tells whether there is a variable yet.
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

// place makes the variable, if there is none yet.
func (v *value) place(dev device.Device, name string, seed, offset uint64) error {
	if v.v != nil {
		if on := v.v.Device(); on != dev {
			panic(&autograd.DeviceError{Op: "Place of " + name, A: on.String(), B: dev.String()})
		}
		return v.v.Err()
	}
	initial := v.dtype
	if initial.Size() == 2 {
		initial = device.Float32 // as it would begin if it were cast later
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

// cast changes the type, and the variable if there is one.
func (v *value) cast(dt device.DType) error {
	if v.v != nil {
		made, err := converted(v.v, dt)
		if err != nil {
			return err
		}
		if made.SetName(v.v.Name()); v.v.RequiresGrad() {
			made.RequireGrad()
		}
		v.v = made
	}
	v.dtype = dt
	return nil
}

// converted is a leaf of a type with x's numbers: x itself, where it is of that
// type.
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
