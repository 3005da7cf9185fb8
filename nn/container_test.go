package nn_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// tied is a model of two inputs and two results. Its last layer shares the weight of its first layer.
type tied struct {
	nn.Container
	in, out *nn.LinearLayer
	body    *nn.Sequence
	scale   *nn.Parameter
	count   *nn.Buffer
}

func newTied(d int) *tied {
	m := &tied{}
	m.in = nn.Add(&m.Container, "in", nn.Linear(d, d, nil))
	m.body = nn.Add(&m.Container, "h.0", nn.Sequential(nn.Linear(d, d, &nn.LinearOptions{NoBias: true}), normed{nn.Linear(d, d, nil), nn.NewUnplacedBuffer("mean", nn.Constant(1), device.Float32, d)}))
	m.scale = m.AddParameter(nn.NewUnplacedParameter("scale", nn.Constant(2), device.Float32, d))
	m.count = m.AddBuffer(nn.NewUnplacedBuffer("count", nn.Constant(0), device.Int64))
	m.out = nn.Add(&m.Container, "out", nn.Linear(d, d, nil))
	m.out.Weight = m.in.Weight
	return m
}

func (m *tied) Forward(x, mask *autograd.Variable) (y, mean *autograd.Variable) {
	y = m.out.Forward(autograd.Mul(m.body.Forward(m.in.Forward(autograd.Mul(x, mask))), m.scale.Var()))
	return y, autograd.Mean(y)
}

func TestContainer(t *testing.T) {
	m := newTied(4)
	want := []string{
		"in.weight float32[4 4]", "in.bias float32[4]", "h.0.0.weight float32[4 4]", "h.0.1.weight float32[4 4]", "h.0.1.bias float32[4]",
		"scale float32[4]", "out.bias float32[4]",
	}
	params := m.Parameters()
	if got := describe(params); !slices.Equal(got, want) {
		t.Errorf("parameters %q, want %q", got, want)
	}
	if got, want := describe(m.Buffers()), []string{"h.0.1.mean float32[4]", "count int64[]"}; !slices.Equal(got, want) {
		t.Errorf("buffers %q, want %q", got, want)
	}
	dev := newDevice(t, cpu.Options{})
	if err := errors.Join(nn.Cast(m, device.Float64, &nn.CastOptions{Keep: []nn.Model{m.in}}), nn.Place(m, dev, 1)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.Parameters(), params) || !slices.Equal(m.Buffers(), m.Buffers()) {
		t.Error("asked again, it has other Parameters or Buffers")
	}
	if in, scale := m.in.Weight.DType(), m.scale.DType(); in != device.Float32 || scale != device.Float64 {
		t.Errorf("cast but for one part, that is %v and the rest %v", in, scale)
	}
	other := newTied(4)
	if err := errors.Join(nn.Place(other, dev, 2), nn.LoadState(t.Context(), other, nn.State(m))); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(read(t, other.out.Weight.Var()), read(t, m.in.Weight.Var())) {
		t.Error("the tied weight was not loaded")
	}

	all := nn.AllNames(m)
	if second := all["out.weight"]; second != m.in.Weight.Var() || len(all) != len(nn.State(m))+1 {
		t.Errorf("%d names, of which out.weight is %v, want those of State and out.weight for the tied weight", len(all), second)
	}

	// A weight that is tied later occurs once as well.
	late := newTied(4)
	late.Parameters()
	late.body = nn.Sequential(late.out)
	nn.Add(&late.Container, "last", late.body)
	late.out.Bias = late.in.Bias
	if got := describe(late.Parameters()); !slices.Equal(got, want[:6]) {
		t.Errorf("parameters %q, want %q", got, want[:6])
	}
	var twice *nn.DuplicateNameError
	if err := thrown(func() { nn.Add(&late.Container, "in", nn.ReLU()) }); !errors.As(err, &twice) || twice.Name != "in" {
		t.Errorf("a name was registered twice: %v", err)
	}
}

// moded adds 1 in training.
type moded struct {
	nn.Container
}

func (m *moded) Forward(x *autograd.Variable) *autograd.Variable {
	if m.Training() {
		return autograd.Add(x, autograd.Scalar(x.Device(), 1))
	}
	return x
}

// distributed is a model around another one, as that of package ddp is.
type distributed struct{ nn.Module }

func (d distributed) Unwrap() nn.Model    { return d.Module }
func (d distributed) SetTraining(on bool) { d.Module.(*nn.Sequence).SetTraining(on) }

// Every model that contains other models passes its mode on to them. What Eval and Train return gives each
// model its own mode back.
func TestModes(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	outer := &moded{}
	inner := &moded{}
	nn.Add(&outer.Container, "a", nn.Sequential(nn.ReLU(), nn.Checkpoint(nn.Residual(distributed{nn.Sequential(inner)}))))
	check := func(what string, want ...float64) {
		t.Helper()
		for i, m := range []*moded{outer, inner} {
			if got := m.Forward(autograd.Scalar(dev, 1)).Item(); got != want[i] {
				t.Errorf("%s: model %d: %v, want %v", what, i, got, want[i])
			}
		}
	}
	check("begins", 2, 2)
	nn.Eval(outer)
	check("Eval", 1, 1)
	nn.Train(outer)
	check("Train", 2, 2)
	nn.Eval(inner)
	for what, set := range map[string]func(nn.Model) func(){"Eval": nn.Eval, "Train": nn.Train} {
		set(outer)()
		check("restored after "+what, 2, 1)
	}
	nn.Eval(outer)
	nn.Train(inner)
	nn.Eval(outer)()
	check("restored to the other modes", 1, 2)
	nn.Eval(nn.Linear(1, 1, nil))() // Linear has no mode
}

func TestResidual(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	l := nn.Linear(2, 2, nil)
	m := nn.Residual(l)
	if err := nn.Place(m, dev, 3); err != nil {
		t.Fatal(err)
	}
	x := autograd.FromSlice(dev, []float32{1, -2}, 1, 2)
	if got, want := read(t, m.Forward(x)), read(t, autograd.Add(x, l.Forward(x))); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := describe(m.Parameters()); !slices.Equal(got, []string{"weight float32[2 2]", "bias float32[2]"}) {
		t.Errorf("parameters %q", got)
	}
}

// Panics about shapes and types name the layer by its path in the whole model.
func TestMisfitNamesTheLayer(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	m := newTied(4)
	m.in = nn.Add(&m.Container, "first", nn.Linear(3, 5, nil)) // its result does not fit the next layer
	nested := nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), nn.Residual(broadcastTo{7})))
	nn.Add(&m.Container, "nested", nested)
	conv := nn.Sequential(nn.Conv2d(4, 8, 2, &nn.ConvOptions{ChannelsLast: true, Height: &nn.ConvHeight{Kernel: 3}}))
	if err := errors.Join(nn.Place(m, dev, 1), nn.Place(conv, dev, 1)); err != nil {
		t.Fatal(err)
	}
	x := autograd.Zeros(dev, device.Float32, 2, 3)
	for want, f := range map[string]func(){
		"h.0.0: Linear: shapes [2 5] and [4 4] do not fit (parameter h.0.0.weight)": func() { m.Forward(x, x) },
		"nested.1.1: Add: shapes [2 3] and [7] do not fit":                          func() { nested.Forward(x) },
		"layer 2: Linear: shapes [2 3] and [1 4] do not fit (parameter 2.weight)":   func() { unnamed(dev).Forward(x) },
		"layer 0: Conv2d: got shape [1 6 6 3], want [n h w 4], no smaller than the window, for the weight [8 4 3 2] (parameter 0.weight)": func() {
			conv.Forward(autograd.Zeros(dev, device.Float32, 1, 6, 6, 3))
		},
	} {
		err := thrown(f)
		var misfit *device.ShapeError
		if !errors.As(err, &misfit) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	half := nn.Sequential(nn.Linear(3, 4, nil), nn.Linear(4, 4, &nn.LinearOptions{Compute: device.BFloat16}))
	if err := nn.Place(half, dev, 1); err != nil {
		t.Fatal(err)
	}
	err := thrown(func() { half.Forward(x) })
	if e := (*device.DTypeError)(nil); !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "layer 1: Linear: got bfloat16") {
		t.Errorf("%v", err)
	}
}

// An error names a parameter by its path in the outermost model, even if the model was never placed as
// a whole.
func TestErrorsNameTheParameterWithoutPlacingTheModel(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	early, late := nn.Linear(5, 4, nil), nn.Linear(4, 2, nil)
	if err := nn.Place(early, dev, 1); err != nil {
		t.Fatal(err)
	}
	net := nn.Sequential(nn.ReLU(), nn.Sequential(early), late)
	zeros := func(shape ...int) *autograd.Variable { return autograd.Zeros(dev, device.Float32, shape...) }
	misfit := func(layer, parameter string, f func()) {
		t.Helper()
		if e, ok := thrown(f).(*device.ShapeError); !ok || e.Layer != layer || e.Parameter != parameter {
			t.Errorf("%v, want a ShapeError of layer %s, parameter %s", e, layer, parameter)
		}
	}
	misfit("1.0", "1.0.weight", func() { net.Forward(zeros(2, 3)) })
	if e, ok := thrown(func() { net.Forward(zeros(2, 5)) }).(*nn.UnplacedError); !ok || e.Name != "2.weight" {
		t.Errorf("%v, want an UnplacedError of 2.weight", e)
	}
	if err := nn.Place(late, dev, 1); err != nil {
		t.Fatal(err)
	}
	misfit("2", "2.weight", func() { late.Forward(zeros(2, 3)) })
}

// unnamed returns a Sequence whose last layer has a parameter that was made without Linear.
func unnamed(dev device.Device) nn.Module {
	l := &nn.LinearLayer{Weight: nn.NewParameter("weight", autograd.Zeros(dev, device.Float32, 1, 4))}
	return nn.Sequential(nn.ReLU(), nn.ReLU(), l)
}

// broadcastTo adds zeros of shape [n].
type broadcastTo struct{ n int }

func (b broadcastTo) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Add(x, autograd.Zeros(x.Device(), x.DType(), b.n))
}
func (broadcastTo) Parameters() []*nn.Parameter { return nil }
