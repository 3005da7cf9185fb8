package nn

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Parameter is a trainable variable with its name in a module. A module that contains other modules returns their
// parameters with longer names, as new Parameters of the same variables.
type Parameter struct {
	name string
	*value
}

// NewParameter returns a parameter for v, a leaf, which requires a gradient from now on.
func NewParameter(name string, v *autograd.Variable) *Parameter {
	return &Parameter{name, placed(name, v.RequireGrad())}
}

// NewPart returns a parameter for v, a leaf with some of the elements of whole. Optimizers get such parts if parameters
// are sharded over ranks. The part has the name and shape of whole; Var and Grad have v's shape. v requires a gradient
// from now on.
func NewPart(whole *Parameter, v *autograd.Variable) *Parameter {
	p := NewParameter(whole.name, v)
	p.shape, p.whole = whole.shape, whole.Var()
	return p
}

// NewUnplacedParameter returns a parameter without a variable. [Place] creates the variable, and init initializes it.
func NewUnplacedParameter(name string, init Init, dt device.DType, shape ...int) *Parameter {
	if slices.ContainsFunc(shape, func(n int) bool { return n < 0 }) {
		panic(fmt.Sprintf("nn: parameter %q has shape %v, want sizes of at least 0", name, shape))
	}
	return &Parameter{name, &value{init: init, dtype: dt, shape: shape}}
}

// Name returns the parameter's name in the module that returned the parameter.
func (p *Parameter) Name() string { return p.name }

// Grad returns the gradient, nil if there is none: see [autograd.Variable.Grad]. With package ddp/zero it is defined
// only in this rank's part: see [autograd.Variable.GradDivided].
func (p *Parameter) Grad() *autograd.Variable { return p.variable(p.name).Grad() }

// Var returns the variable. It panics with an [*UnplacedError] if the parameter is not placed.
func (p *Parameter) Var() *autograd.Variable { return p.variable(p.name) }

// IsPart reports whether the parameter is a part of another parameter: see [NewPart].
func (p *Parameter) IsPart() bool { return p.whole != nil }

// SetPart sets the result of Part. Package ddp/zero calls it.
func (p *Parameter) SetPart(b *Buffer) { p.part = b }

// Part returns this rank's elements of the parameter, under the parameter's name, if the parameter is divided among ranks
// ([Buffer.Span]), and otherwise nil. Only operations may use the parameter itself then.
func (p *Parameter) Part() *Buffer { return p.part }

// Identity returns a comparable value that is equal for two Parameters if and only if they have the same variable. Use
// it to process each variable once. Placing a parameter changes its identity.
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

// Frozen reports whether the parameter is frozen.
func (p *Parameter) Frozen() bool {
	if p.v != nil {
		return !p.v.RequiresGrad()
	}
	return p.frozen
}

// FreezeBase freezes the parameters that m has now, and marks them as those of a base model, whose files have their
// values. [State] leaves them out, and so do checkpoints and saved weights. Unrounded values of [CastOptions].Masters are
// freed, because no optimizer needs them. FreezeBase is called before ddp.New.
func FreezeBase(m Model) {
	for _, p := range m.Parameters() {
		p.Freeze()
		if p.v != nil { // else no memory is used, and UnfreezeBase brings them back
			p.SetMaster(nil)
		}
		p.isBase = true
	}
}

// IsBase reports whether FreezeBase has marked the parameter.
func (p *Parameter) IsBase() bool { return p.isBase }

// UnfreezeBase undoes FreezeBase, but for the unrounded values of placed parameters.
func UnfreezeBase(m Model) {
	for _, p := range m.Parameters() {
		if p.isBase {
			p.isBase = false
			p.Unfreeze()
		}
	}
}

// SetInit replaces the Init with which [Place] will initialize the parameter, for example by one that reads a file. It has
// no effect on a parameter that is placed.
func (p *Parameter) SetInit(init Init) { p.init = init }

// Initial returns a new variable with the parameter's initial values, without placing the parameter. So the parameters of a
// model that is larger than the memory can be read one after the other. If [Parameter.KeepsMaster], the values are Float32
// and not rounded; else they have the parameter's type. The caller frees the variable. The error is that of the parameter's
// Init or of the device.
func (p *Parameter) Initial(dev device.Device) (*autograd.Variable, error) {
	return p.initial(dev)
}

// PlaceAt makes a variable of t, which has the parameter's length and type, for a parameter that is not placed. The
// caller owns the memory, and writes the parameter's values to it: see [PlaceExcept].
func (p *Parameter) PlaceAt(dev device.Device, t device.Tensor) {
	p.place(autograd.FromTensor(dev, t.Reshape(p.shape...)))
}

// create makes the parameter's variable, with its initial values.
func (p *Parameter) create(dev device.Device) error {
	first, err := p.initial(dev)
	if err != nil {
		return err
	}
	rounded, err := converted(first, p.dtype)
	if err != nil {
		return err
	}
	if p.place(rounded); rounded != first {
		p.SetMaster(first)
	}
	return nil
}

// place makes v the variable of a parameter.
func (p *Parameter) place(v *autograd.Variable) {
	p.v = v.SetName(cmp.Or(p.path, p.name))
	switch {
	case !p.frozen:
		v.RequireGrad()
	case v.DType().IsFloat():
		v.RequireGrad().Freeze() // so that captured steps notice Unfreeze
	}
}

func (p *Parameter) String() string { return p.describe(p.name) }

// Buffer is a variable of a module's state that is not a parameter, with its name in the module.
type Buffer struct {
	name string
	*value
	span *Span // nil if the variable holds all elements
}

// Span says which elements of a tensor of shape Whole a variable contains: [Lo, Hi) in row-major order.
type Span struct {
	Whole  device.Shape
	Lo, Hi int
}

// NewBuffer returns a buffer of v, a leaf.
func NewBuffer(name string, v *autograd.Variable) *Buffer {
	return &Buffer{name: name, value: placed(name, v)}
}

// Divided marks the buffer as the elements s of a sharded tensor, and returns it.
func (b *Buffer) Divided(s Span) *Buffer {
	return &Buffer{b.name, b.value, &s}
}

// Span returns which elements of a sharded tensor the buffer contains. divided is false if it contains all.
func (b *Buffer) Span() (s Span, divided bool) {
	if b.span != nil {
		return *b.span, true
	}
	return Span{Whole: b.shape, Hi: b.shape.Len()}, false
}

// NewUnplacedBuffer returns a buffer without a variable. [Place] creates the variable, and init initializes it.
func NewUnplacedBuffer(name string, init Init, dt device.DType, shape ...int) *Buffer {
	return &Buffer{name: name, value: &value{init: init, dtype: dt, shape: shape}}
}

// Name returns the buffer's name in the module that returned the buffer.
func (b *Buffer) Name() string { return b.name }

// Var returns the variable. It panics with an [*UnplacedError] if the buffer is not placed.
func (b *Buffer) Var() *autograd.Variable { return b.variable(b.name) }

// create makes the buffer's variable, with its initial values.
func (b *Buffer) create(dev device.Device) error {
	v, err := b.initial(dev)
	if err == nil {
		b.v = v.SetName(cmp.Or(b.path, b.name))
	}
	return err
}

func (b *Buffer) String() string { return b.describe(b.name) }

// Init enqueues a kernel on dev's compute stream that initializes a variable. Random values are taken from the sequence
// selected by seed, from the position offset on.
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

// UnplacedError is the panic value for using a parameter or buffer before [Place].
type UnplacedError struct{ Name string }

func (e *UnplacedError) Error() string {
	return fmt.Sprintf("nn: %s is not placed on a device. Register its module in the model with nn.Add, or call nn.Place", e.Name)
}

// value is the content of a parameter or buffer, shared by all its names.
type value struct {
	shape device.Shape
	dtype device.DType
	init  Init
	v     *autograd.Variable // nil before Place
	path  string             // its name in the outermost model, for messages; empty before Add

	part   *Buffer            // see Parameter.Part
	whole  *autograd.Variable // for a part, the variable of the whole; else nil
	master master             // for a 16-bit parameter; usually unset

	seed, offset uint64 // what Place has selected for init
	keepsMaster  bool   // whether Place keeps the values from before the rounding

	frozen bool // whether Place creates the parameter frozen
	isBase bool // whether the parameter belongs to a base model: see FreezeBase
}

func placed(name string, v *autograd.Variable) *value {
	return &value{shape: v.Shape(), dtype: v.DType(), v: v.SetName(name)}
}

// Shape returns the shape. For a part ([NewPart]) it is the shape of the whole. The caller must not change the result.
func (v *value) Shape() device.Shape { return v.shape }

// DType returns the type of the elements.
func (v *value) DType() device.DType { return v.dtype }

// Placed reports whether the variable exists.
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

// isOn reports whether the value is placed. It panics if it is placed on another device.
func (v *value) isOn(dev device.Device, name string) bool {
	if v.v == nil {
		return false
	}
	if on := v.v.Device(); on != dev {
		panic(&autograd.DeviceError{Op: "Place of " + name, A: on.String(), B: dev.String()})
	}
	return true
}

// initial returns a new variable with the initial values: see Parameter.Initial.
func (v *value) initial(dev device.Device) (*autograd.Variable, error) {
	dt := v.dtype
	if dt.Size() == 2 {
		dt = device.Float32 // the same values as if Cast converted it later
	}
	first := autograd.Zeros(dev, dt, v.shape...)
	err := first.Err()
	if err == nil {
		err = v.init(dev, first.Tensor(), v.seed, v.offset)
	}
	if err != nil || v.keepsMaster && !v.frozen {
		return first, err
	}
	made, err := converted(first, v.dtype)
	if err == nil && made != first {
		first.Free()
	}
	return made, err
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
