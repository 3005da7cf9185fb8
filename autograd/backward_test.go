package autograd_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// tick is the identity; its Backward appends its name to a log.
type tick struct {
	name string
	log  *[]string
}

func (f tick) Name() string                         { return f.name }
func (f tick) Shape(in []device.Shape) device.Shape { return in[0] }
func (f tick) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (f tick) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	*f.log = append(*f.log, f.name)
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

func mustBackward(t *testing.T, v *autograd.Variable) {
	t.Helper()
	if err := v.Backward(nil); err != nil {
		t.Fatal(err)
	}
}

// mustRetain is mustBackward that keeps the graph.
func mustRetain(t *testing.T, v *autograd.Variable) {
	t.Helper()
	if err := v.Backward(&autograd.BackwardOptions{RetainGraph: true}); err != nil {
		t.Fatal(err)
	}
}

// The pass calls a sink's Ready once, after the last use of the leaf and before it reaches earlier layers.
func TestReadyFollowsTheLastUse(t *testing.T) {
	dev := newDevice(t)
	var log []string
	leaf := func(name string) *autograd.Variable {
		v := autograd.Scalar(dev, 2).RequireGrad()
		newSink(v, name, &log)
		return v
	}
	first, shared, last := leaf("first"), leaf("shared"), leaf("last")
	through := func(name string, x *autograd.Variable) *autograd.Variable {
		return autograd.Apply(tick{name, &log}, x)
	}

	h := through("layer 1", autograd.Mul(first, shared))
	h = through("layer 2", autograd.Mul(h, shared))
	h = through("layer 3", autograd.Mul(h, last))
	mustBackward(t, autograd.Mul(h, shared))

	want := []string{
		"shared settle", // the first write of three
		"layer 3", "last settle", "last scale", "last ready",
		"layer 2",
		"layer 1", "shared scale", "shared ready", "first settle", "first scale", "first ready",
	}
	if !slices.Equal(log, want) {
		t.Errorf("heard\n%s\nwant\n%s", strings.Join(log, "\n"), strings.Join(want, "\n"))
	}
	// y = first·shared³·last
	if got := shared.Grad().Item(); got != 3*4*2*2 {
		t.Errorf("gradient of the shared leaf is %v, want 48", got)
	}
}

// total sums its inputs; its Backward records the order in which the pass asks for gradients.
type total struct{ order *[]int }

func (total) Name() string                         { return "total" }
func (total) Shape(in []device.Shape) device.Shape { return in[0] }

func (total) Forward(c *autograd.Call) error {
	if err := c.Kernels.Fill(c.Stream, c.Out, 0); err != nil {
		return err
	}
	for _, x := range c.In {
		if err := c.Kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: 1, Beta: 1}, x); err != nil {
			return err
		}
	}
	return nil
}

func (f total) Backward(c *autograd.Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	*f.order = append(*f.order, i)
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// The pass computes gradients of leaves first, because the reducer can then start early, and gradients of
// later inputs before those of earlier inputs. It skips inputs that need no gradient.
func TestLeavesGetGradientsFirst(t *testing.T) {
	dev := newDevice(t)
	leaf := func() *autograd.Variable { return autograd.Scalar(dev, 1).RequireGrad() }
	result := func() *autograd.Variable { return autograd.Neg(leaf()) }
	var order []int
	y := autograd.Apply(total{&order}, leaf(), result(), autograd.Scalar(dev, 1), leaf(), result())
	mustBackward(t, y)
	if want := []int{3, 0, 4, 1}; !slices.Equal(order, want) || y.Item() != 1 {
		t.Errorf("gradients in the order %v of %v, want %v of 1", order, y.Item(), want)
	}
}

func TestGradientsAddUpUntilZeroed(t *testing.T) {
	dev := newDevice(t)
	w := autograd.Scalar(dev, 3).RequireGrad()
	if w.Grad() != nil {
		t.Error("a gradient before the first pass")
	}
	for pass, want := range []float64{6, 12} {
		mustBackward(t, autograd.Mul(w, w))
		if got := w.Grad().Item(); got != want {
			t.Errorf("after pass %d the gradient is %v, want %v", pass+1, got, want)
		}
	}
	w.ZeroGrad()
	if w.Grad() != nil {
		t.Error("a gradient after ZeroGrad")
	}
	mustBackward(t, w) // a pass may start at a leaf
	if got := w.Grad().Item(); got != 1 {
		t.Errorf("gradient for itself is %v, want 1", got)
	}
}

// The pass runs no kernel for inputs that need no gradient.
func TestOnlyNeededGradients(t *testing.T) {
	dev := newFaulty(t, nil)
	x, w := autograd.Zeros(dev, device.Float32, 2, 3), autograd.Zeros(dev, device.Float32, 4, 3).RequireGrad()
	loss := autograd.Sum(autograd.Linear(x, w, nil))
	dev.kernels = 0
	mustBackward(t, loss)
	// Two kernels fill and copy the initial gradient, three belong to Sum, one to the product.
	if dev.kernels != 6 {
		t.Errorf("%d kernels ran, want 6", dev.kernels)
	}
	if x.Grad() != nil || x.RequiresGrad() {
		t.Error("a gradient for an input that needs none")
	}
	if loss := autograd.Sum(x); loss.RequiresGrad() {
		t.Error("a graph where nothing needs a gradient")
	}
}

func TestSecondBackward(t *testing.T) {
	dev := newDevice(t)
	w := autograd.Scalar(dev, 3).RequireGrad()
	h := autograd.Mul(w, w)
	a, b := autograd.MulScalar(h, 2), autograd.MulScalar(h, 10)
	mustRetain(t, a)
	mustRetain(t, a)
	mustBackward(t, b)
	if got := w.Grad().Item(); got != 12+12+60 {
		t.Errorf("gradient %v, want 84", got)
	}
	err := panics[*autograd.GraphError](t, func() { a.Backward(nil) })
	if err != nil && !strings.Contains(err.Error(), "RetainGraph") {
		t.Errorf("%v does not say what to do", err)
	}
}

func TestBackwardFromGradient(t *testing.T) {
	dev := newDevice(t)
	w := autograd.FromSlice(dev, []float64{1, 2, 3}).RequireGrad()
	g := autograd.FromSlice(dev, []float64{1, 10, 100})
	y := autograd.LinearReLU(autograd.Mul(w, w), autograd.FromSlice(dev, []float64{1, 0, 0, 0, 1, 0, 0, 0, 1}, 3, 3), nil)
	if err := y.Backward(&autograd.BackwardOptions{Gradient: g}); err != nil {
		t.Fatal(err)
	}
	near(t, "gradient", read(t, w.Grad()), []float64{2, 40, 600}, 0)
	near(t, "the gradient given", read(t, g), []float64{1, 10, 100}, 0)
}

// The pass frees the gradient of a result as soon as it has used it, so it needs memory for two such
// gradients however long the chain is.
func TestInteriorGradientsAreFreed(t *testing.T) {
	const n, length = 1 << 20, 16
	dev := newDevice(t)
	x := autograd.Zeros(dev, device.Float32, n/4).RequireGrad()
	h := x
	for range length {
		h = autograd.MulScalar(h, 1)
	}
	before := dev.Memory()
	mustBackward(t, autograd.Sum(h))
	after := dev.Memory()
	if extra := after.Peak - before.InUse; extra > 3*n+n/2 {
		t.Errorf("%d bytes more at the peak, want the leaf's gradient and two more of %d bytes", extra, n)
	}
	if extra := after.InUse - before.InUse; extra > n+n/2 {
		t.Errorf("%d bytes stay in use, want the leaf's gradient of %d", extra, n)
	}
}

// watcher is an Observer that records its calls.
type watcher struct {
	leaves  []*autograd.Variable
	started int
	reached []bool
	ended   []error
	fail    error
}

func (w *watcher) BeginBackward(reached func(*autograd.Variable) bool) {
	w.started++
	w.reached = nil
	for _, l := range w.leaves {
		w.reached = append(w.reached, reached(l))
	}
}

func (w *watcher) EndBackward(err error) error {
	w.ended = append(w.ended, err)
	return w.fail
}

func TestObservers(t *testing.T) {
	dev := newDevice(t)
	a, b := autograd.Scalar(dev, 2).RequireGrad(), autograd.Scalar(dev, 3).RequireGrad()
	w := &watcher{leaves: []*autograd.Variable{a, b, autograd.Scalar(dev, 1)}}
	other := &watcher{}
	out1 := autograd.Observe(autograd.MulScalar(a, 5), w)
	out2 := autograd.Observe(autograd.Mul(a, b), w)
	elsewhere := autograd.Observe(autograd.MulScalar(b, 7), other)

	mustRetain(t, elsewhere)
	if w.started != 0 || other.started != 1 {
		t.Errorf("a pass elsewhere told the watcher %d times and its own %d times, want 0 and 1", w.started, other.started)
	}
	mustRetain(t, out1)
	if w.started != 1 || !slices.Equal(w.reached, []bool{true, false, false}) {
		t.Errorf("told %d times of leaves %v, want once of the first", w.started, w.reached)
	}
	mustRetain(t, autograd.Add(out1, out2))
	if w.started != 2 || !slices.Equal(w.reached, []bool{true, true, false}) {
		t.Errorf("told %d times in all, of leaves %v, want twice and the first two", w.started, w.reached)
	}
	if !slices.Equal(w.ended, []error{nil, nil}) {
		t.Errorf("passes ended with %v, want two without an error", w.ended)
	}
	if got := a.Grad().Item(); got != 5+5+3 { // the observed handles pass gradients through
		t.Errorf("gradient %v, want 13", got)
	}

	w.fail = errors.New("reduction failed")
	if err := out2.Backward(nil); err != w.fail {
		t.Errorf("Backward returned %v, want the observer's %v", err, w.fail)
	}
	if leaf := autograd.Scalar(dev, 1); autograd.Observe(leaf, w) != leaf {
		t.Error("a variable without a graph is observed")
	}
	// Two observers of one output: the handle of the second also has the first.
	both := autograd.Observe(autograd.Observe(autograd.Neg(a), w), other)
	w.fail = nil
	mustBackward(t, both)
	if w.started != 4 || other.started != 2 {
		t.Errorf("observers told %d and %d times, want 4 and 2", w.started, other.started)
	}
}

// throwing is the identity; its Backward calls thrown.
type throwing struct{ thrown func() }

func (throwing) Name() string                         { return "throwing" }
func (throwing) Shape(in []device.Shape) device.Shape { return in[0] }
func (throwing) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (f throwing) Backward(*autograd.Call, int, device.Tensor, device.Accum, device.Tensor) error {
	f.thrown()
	return nil
}

// If a pass panics, or its goroutine ends, every observer that received BeginBackward receives
// EndBackward, no memory leaks, and the next pass works.
func TestPanicInABackwardPass(t *testing.T) {
	dev := newDevice(t)
	a, b := autograd.Scalar(dev, 2).RequireGrad(), autograd.Scalar(dev, 3).RequireGrad()
	s := newSink(a, "a", nil)
	mustBackward(t, autograd.Mul(a, b))
	for _, c := range []struct {
		thrown func()
		value  any
	}{{func() { panic("oops") }, "oops"}, {runtime.Goexit, nil}} {
		a.ZeroGrad()
		b.ZeroGrad()
		w := &watcher{fail: errors.New("lost")}
		use := dev.Memory().InUse
		var value any
		autograd.Scope(dev, func() {
			y := autograd.Observe(autograd.Mul(autograd.Apply(throwing{c.thrown}, autograd.Mul(a, b)), b), w)
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { value = recover() }()
				y.Backward(nil)
			}()
			<-done
			panics[*autograd.GraphError](t, func() { y.Backward(nil) })
		})
		if value != c.value {
			t.Errorf("the panic is %v, want %v", value, c.value)
		}
		for what, err := range map[string]error{"the observer": errors.Join(w.ended...), "a sink": s.state.Err, "a leaf": b.GradErr()} {
			if thrown := (*autograd.PanicError)(nil); !errors.As(err, &thrown) || thrown.Value != c.value {
				t.Errorf("%s was told %v", what, err)
			}
		}
		if len(w.ended) != 1 {
			t.Errorf("the observer was told %d times", len(w.ended))
		}
		if now := dev.Memory().InUse; now != use {
			t.Errorf("%d bytes in use, %d before", now, use)
		}
		a.ZeroGrad()
		b.ZeroGrad()
		mustBackward(t, autograd.Mul(a, b))
		if g := a.Grad().Item(); g != 3 || s.state.Err != nil || b.GradErr() != nil {
			t.Errorf("the next pass gives %v, %v and %v", g, s.state.Err, b.GradErr())
		}
	}
}

// If an observer panics in BeginBackward, gradients and graph stay unchanged.
func TestPanicInBeginBackwardChangesNothing(t *testing.T) {
	dev := newDevice(t)
	a := autograd.Scalar(dev, 2).RequireGrad()
	first, second := &watcher{}, &watcher{leaves: []*autograd.Variable{nil}}
	y := autograd.Observe(autograd.Observe(autograd.Neg(a), first), second)
	func() {
		defer func() { recover() }()
		y.Backward(nil)
		t.Error("the second observer panics, and the pass does not")
	}()
	if len(first.ended) != 1 || len(second.ended) != 0 || a.GradErr() != nil || a.Grad() != nil {
		t.Errorf("told %v and %v, and the gradient is %v, %v", first.ended, second.ended, a.Grad(), a.GradErr())
	}
	second.leaves = nil
	mustBackward(t, y)
}

// The owner of a sink decides whether an optimizer may use the gradient.
func TestGradSink(t *testing.T) {
	dev := newDevice(t)
	v := autograd.Scalar(dev, 2).RequireGrad().SetName("w")
	mustBackward(t, autograd.Mul(v, v))
	use := dev.Memory().InUse
	s := newSink(v, "w", nil)
	if v.Grad() != nil || dev.Memory().InUse >= use {
		t.Error("the gradient of before, or its memory, is still there")
	}
	s.scale = 0.5
	mustBackward(t, autograd.Mul(v, v))
	settled := s.settled
	g := v.Grad()
	if s.settled != settled {
		t.Errorf("asking for the gradient settles it")
	}
	if g.Item() != 2 || g.Name() != "w.grad" || g.Tensor().Buf.Addr() != s.t.Buf.Addr() {
		t.Errorf("%v is %v, want w.grad 2 in the sink's memory", g, g.Item())
	}
	mustBackward(t, autograd.Mul(v, v))
	for what, use := range map[string]func(){
		"reading it":               func() { g.Item() },
		"its memory":               func() { g.Tensor() },
		"an operation on it":       func() { autograd.Neg(g) },
		"its memory, once removed": func() { g.Detach().Tensor() },
	} {
		before := s.settled
		use()
		if s.settled == before {
			t.Errorf("%s does not settle the gradient, which a pass has changed since Grad returned it", what)
		}
	}
	s.err = errors.New("a rank failed")
	if err := v.GradErr(); err != s.err {
		t.Errorf("GradErr is %v, want the sink's", err)
	}
	v.ZeroGrad()
	if s.state.Content != gradsink.Zeroed || v.Grad() != nil {
		t.Error("ZeroGrad did not reach the sink")
	}
	gradsink.Set(v, nil, nil)
	mustBackward(t, autograd.Mul(v, v))
	if got := v.Grad().Item(); got != 4 || s.state.Content != gradsink.Zeroed {
		t.Errorf("without a sink the gradient is %v, want 4 and the sink untouched", got)
	}
}

// A sink may hold the gradient in another type than the leaf: operations compute gradients in the leaf's
// type, and the pass adds and scales them in the sink's type.
func TestGradSinkOfAnotherType(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	leaf := func(shape ...int) *autograd.Variable {
		n := device.Shape(shape).Len()
		v := autograd.Zeros(dev, device.Float32, shape...)
		if err := dev.Kernels().Copy(dev.Compute(), v.Tensor(), device.HostTensor(values(rng, n, -1, 1), device.Invalid)); err != nil {
			t.Fatal(err)
		}
		return v.RequireGrad()
	}
	x := leaf(4, 3).Detach()
	w, b, other := leaf(5, 3), leaf(5), leaf(5)
	// One kernel computes the gradients of a weight and its bias; another leaf is used twice.
	pass := func() {
		mustBackward(t, autograd.Sum(autograd.Mul(autograd.Mul(autograd.Linear(x, w, b), other), other)))
	}
	leaves := []*autograd.Variable{w, b, other}
	pass()
	var want [][]float64
	for _, v := range leaves {
		want = append(want, read(t, v.Grad()))
	}
	var log []string
	for _, v := range leaves {
		s := newSink(v, "sink", &log)
		s.t = autograd.Zeros(dev, device.Float64, v.Shape()...).Tensor()
		if err := dev.Kernels().Fill(dev.Compute(), s.t, math.NaN()); err != nil {
			t.Fatal(err)
		}
		s.scale = 0.5
	}
	held := dev.Memory().InUse
	for range 2 {
		pass()
	}
	for i, v := range leaves {
		g := v.Grad()
		if g.DType() != device.Float64 {
			t.Errorf("a gradient is in %v", g.DType())
		}
		for j, got := range read(t, g) {
			if w := want[i][j] * 0.75; !(math.Abs(got-w) <= 1e-6*max(1, math.Abs(w))) { // (w·0.5 + w)·0.5
				t.Errorf("number %d of gradient %d is %v, want %v", j, i, got, w)
			}
		}
	}
	if use := dev.Memory().InUse; use > held+1<<12 {
		t.Errorf("%d bytes in use, %d before", use, held)
	}
	// The pass starts at the leaf itself.
	seed := leaf(5).Detach()
	b.ZeroGrad()
	if err := b.Backward(&autograd.BackwardOptions{Gradient: seed}); err != nil {
		t.Fatal(err)
	}
	for j, got := range read(t, b.Grad()) {
		if want := read(t, seed)[j] * 0.5; got != want {
			t.Errorf("number %d of the leaf's own gradient is %v, want %v", j, got, want)
		}
	}
}

// A frozen leaf gets no gradient, even in graphs recorded before. Unfrozen, it has its sink again.
func TestFreeze(t *testing.T) {
	dev := newDevice(t)
	a, b := autograd.Scalar(dev, 2).RequireGrad(), autograd.Scalar(dev, 3).RequireGrad()
	var log []string
	s := newSink(a, "a", &log)
	y := autograd.Mul(a, b)
	mustRetain(t, y)
	if a.Freeze() != a || a.RequiresGrad() || a.Grad() != nil || s.state.Content != gradsink.Zeroed {
		t.Errorf("frozen, it requires a gradient: %v, and has %v", a.RequiresGrad(), a.Grad())
	}
	log = nil
	mustBackward(t, y)
	mustBackward(t, autograd.Mul(a, b))
	if len(log) > 0 || b.Grad().Item() != 6 {
		t.Errorf("the frozen leaf's sink heard %v, and the other's gradient is %v, want 6", log, b.Grad().Item())
	}
	if autograd.Mul(a, a).RequiresGrad() {
		t.Error("a graph over a frozen leaf alone")
	}
	s.err = errors.New("a rank failed")
	if err := a.Freeze().GradErr(); err != s.err {
		t.Errorf("frozen, GradErr is %v, want the sink's", err)
	}
	a.RequireGrad()
	mustBackward(t, autograd.Mul(a, b))
	if got := a.Grad().Item(); got != 3 || !slices.Contains(log, "a ready") {
		t.Errorf("back again its gradient is %v, want 3, in its sink, which heard %v", got, log)
	}
	gradsink.Set(a.Freeze(), nil, nil)
	mustBackward(t, a.RequireGrad())
	if got := a.Grad().Item(); got != 1 || s.state.Content != gradsink.Zeroed {
		t.Errorf("without a sink its gradient is %v, want 1", got)
	}
	x := autograd.Scalar(dev, 1)
	gradsink.Set(x.Freeze(), nil, nil)
	if mustBackward(t, x.RequireGrad()); x.Grad().Item() != 1 {
		t.Error("freezing a leaf that requires no gradient is for good")
	}
	panics[*autograd.GraphError](t, func() { autograd.Exp(a).Freeze() })
}

// Leaves that are frozen while a FeedForward is applied, or only then not, have their gradients in its graph.
func TestFreezeAroundFeedForward(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var in [5]*autograd.Variable
	for i, shape := range [][]int{{2, 3}, {4, 3}, {4}, {3, 4}, {3}} {
		in[i] = autograd.FromSlice(dev, values(rng, device.Shape(shape).Len(), -1, 1), shape...).RequireGrad()
	}
	loss := func() *autograd.Variable {
		y := autograd.FeedForward(in[0], in[1], in[2], in[3], in[4], nil)
		return autograd.Sum(autograd.Mul(y, y))
	}
	mustBackward(t, loss())
	var want [5][]float64
	for i, v := range in {
		want[i] = read(t, v.Grad())
	}
	for subset := range 1 << 5 { // the leaves that have a gradient while the graph is recorded
		for wanted := 1; wanted < 1<<5; wanted++ { // and in the pass
			set := func(to int) {
				for i, v := range in {
					if v.Freeze(); to>>i&1 == 1 {
						v.RequireGrad().ZeroGrad()
					}
				}
			}
			if set(subset); subset == 0 {
				continue // no graph
			}
			y := loss()
			set(wanted)
			mustBackward(t, y)
			for i, v := range in {
				if wanted>>i&1 == 1 && !slices.Equal(read(t, v.Grad()), want[i]) {
					t.Errorf("recorded with %05b, run with %05b: gradient %d is %v, want %v", subset, wanted, i, v.Grad(), want[i])
				}
			}
		}
	}
}

// Grad returns the same handle again, and a new one if the old handle became invalid.
func TestGradHandles(t *testing.T) {
	v := autograd.Scalar(newDevice(t), 2).RequireGrad().SetName("w")
	newSink(v, "w", nil)
	mustBackward(t, autograd.Neg(v))
	g := v.Grad()
	if v.Grad() != g {
		t.Error("Grad makes a handle each time")
	}
	g.Free()
	if again := v.Grad(); again == g || again.Item() != -1 {
		t.Error("a freed handle comes back")
	}
	v.Grad().RequireGrad()
	if v.Grad().RequiresGrad() {
		t.Error("a handle that requires a gradient comes back")
	}
	v.SetName("b")
	if name := v.Grad().Name(); name != "b.grad" {
		t.Errorf("the gradient of b is %s", name)
	}
}
