package amp_test

import (
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newDevice(t *testing.T) device.Device {
	dev := cpu.New(&cpu.Options{Threads: 1})
	t.Cleanup(func() { dev.Close() })
	return dev
}

// scalar returns a parameter with one element, and its optimizer.
func scalar(dev device.Device, v float32, lr float64) (*nn.Parameter, *optim.SGD) {
	p := nn.NewParameter("p", autograd.FromSlice(dev, []float32{v}))
	return p, must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: lr}))
}

// backward sets the gradient of p to g times the scale.
func backward(t *testing.T, s *amp.Scaler, p *nn.Parameter, g float32) {
	t.Helper()
	p.Var().ZeroGrad()
	loss := autograd.Sum(autograd.Mul(p.Var(), autograd.FromSlice(p.Var().Device(), []float32{g})))
	if err := s.Scale(loss).Backward(nil); err != nil {
		t.Fatal(err)
	}
}

func step(t *testing.T, s *amp.Scaler, opt optim.Optimizer) {
	t.Helper()
	if err := s.Step(opt); err != nil {
		t.Fatal(err)
	}
}

// train makes a step and an Update with each of the gradients.
func train(t *testing.T, s *amp.Scaler, p *nn.Parameter, opt optim.Optimizer, gradients ...float32) {
	t.Helper()
	for _, g := range gradients {
		backward(t, s, p, g)
		step(t, s, opt)
		s.Update()
	}
}

// state is the JSON form of a Scaler.
type state struct {
	Scale         float64
	GrowthTracker int
}

func stateOf(t *testing.T, s *amp.Scaler) (got state) {
	t.Helper()
	if err := json.Unmarshal(must.New(json.Marshal(s)), &got); err != nil {
		t.Error(err)
	}
	return got
}

func restore(t *testing.T, s *amp.Scaler, to state) {
	t.Helper()
	if err := json.Unmarshal(must.New(json.Marshal(to)), s); err != nil {
		t.Error(err)
	}
}

func committed(opt *optim.SGD) int {
	n, _ := opt.Committed()
	return n
}

var inf = float32(math.Inf(1))

// The scale changes as PyTorch documents for its GradScaler. Each row says whether the Update
// follows an overflow, and has the scale and the growth tracker after the Update.
func TestScaleFollowsGradScaler(t *testing.T) {
	type update struct {
		overflow bool
		scale    float64
		tracker  int
	}
	for _, c := range []struct {
		name    string
		opts    *amp.Options
		updates []update
	}{
		{"defaults", nil, []update{{false, 65536, 1}, {true, 32768, 0}, {true, 16384, 0}, {false, 16384, 1}}},
		{"grows", &amp.Options{InitScale: 8, GrowthInterval: 2}, []update{
			{false, 8, 1}, {false, 16, 0}, {false, 16, 1}, {true, 8, 0}, {false, 8, 1}, {false, 16, 0},
		}},
		{"factors of its own, rounded to float32", &amp.Options{InitScale: 3, GrowthFactor: 1.1, BackoffFactor: 0.3, GrowthInterval: 1}, []update{
			{false, float64(float32(3.3)), 0}, {true, float64(float32(float64(float32(3.3)) * 0.3)), 0},
		}},
		{"not to infinity", &amp.Options{InitScale: 0x1p127, GrowthInterval: 1}, []update{{false, 0x1p127, 0}, {true, 0x1p126, 0}}},
		{"not to nothing", &amp.Options{InitScale: 0x1p-125}, []update{{true, 0x1p-126, 0}, {true, 0x1p-126, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, opt := scalar(newDevice(t), 1, 0)
			s := must.New(amp.NewScaler(c.opts))
			for i, u := range c.updates {
				g := float32(0)
				if u.overflow {
					g = inf
				}
				train(t, s, p, opt, g)
				if got, want := stateOf(t, s), (state{Scale: u.scale, GrowthTracker: u.tracker}); got != want || s.GetScale() != u.scale {
					t.Errorf("update %d: %+v, want %+v", i, got, want)
				}
			}
			before := stateOf(t, s)
			s.Update()
			if stateOf(t, s) != before {
				t.Error("an Update without a step changed the scale")
			}
		})
	}
}

// A step is that of the unscaled loss. A step whose gradient overflows changes nothing.
func TestStep(t *testing.T) {
	for name, dev := range map[string]device.Device{"at once": newDevice(t), "later": devicetest.Lagging(newDevice(t))} {
		t.Run(name, func(t *testing.T) {
			p, opt := scalar(dev, 1, 0.5)
			s := must.New(amp.NewScaler(nil))
			for i, c := range []struct {
				g, want float32
				steps   int
			}{{1, 0.5, 1}, {inf, 0.5, 1}, {float32(math.NaN()), 0.5, 1}, {-1, 1, 2}, {0x1p100, 1 - 0x1p99, 3}} {
				backward(t, s, p, c.g)
				if got := p.Grad().Item(); got == got && got != float64(c.g)*s.GetScale() {
					t.Errorf("step %d: the gradient is %v, want %v times %v", i, got, c.g, s.GetScale())
				}
				step(t, s, opt)
				s.Update()
				if got := p.Item(); got != float64(c.want) || committed(opt) != c.steps {
					t.Errorf("step %d: %v after %d steps, want %v after %d", i, got, committed(opt), c.want, c.steps)
				}
			}
		})
	}
}

// Scaling keeps a gradient that is too small for Float16.
func TestSmallGradientsAreKept(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		dev := newDevice(t)
		p := nn.NewParameter("p", autograd.Zeros(dev, device.Float16, 1))
		opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 0x1p26, MasterWeights: true}))
		s := must.New(amp.NewScaler(&amp.Options{Disabled: disabled}))
		loss := autograd.Mul(autograd.Sum(autograd.Cast(p.Var(), device.Float32)), autograd.Scalar(dev, 0x1p-27))
		if err := s.Scale(loss).Backward(nil); err != nil {
			t.Fatal(err)
		}
		step(t, s, opt)
		want := -0.5
		if disabled {
			want = 0
		}
		if got := p.Item(); got != want {
			t.Errorf("disabled %v: a step by 2^26·2^-27 went to %v, want %v", disabled, got, want)
		}
	}
}

// Unscale divides the gradients, and Step does not divide them again.
func TestUnscale(t *testing.T) {
	dev := newDevice(t)
	p, opt := scalar(dev, 1, 0.5)
	s := must.New(amp.NewScaler(nil))
	backward(t, s, p, 6)
	if err := s.Unscale(opt); err != nil {
		t.Fatal(err)
	}
	if got := p.Grad().Item(); got != 6 {
		t.Errorf("unscaled, the gradient is %v, want 6", got)
	}
	device.Elements[float32](p.Grad().Tensor())[0] = 2 // as clipping would
	step(t, s, opt)
	if got := p.Item(); got != 0 {
		t.Errorf("the parameter is %v, want 0", got)
	}
	s.Update()

	backward(t, s, p, inf)
	if err := s.Unscale(opt); err != nil {
		t.Fatal(err)
	}
	device.Elements[float32](p.Grad().Tensor())[0] = 1 // clipping does not hide the overflow from Step
	step(t, s, opt)
	s.Update()
	if p.Item() != 0 || committed(opt) != 1 || s.GetScale() != 32768 {
		t.Errorf("after an overflow: %v, %d steps, scale %v", p.Item(), committed(opt), s.GetScale())
	}

	half := nn.NewParameter("half", autograd.Zeros(dev, device.Float16, 1))
	if err := s.Scale(autograd.Cast(half.Var(), device.Float32)).Backward(nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Unscale(must.New(optim.NewSGD([]*nn.Parameter{half}, nil))); !errors.As(err, new(*device.DTypeError)) {
		t.Errorf("Unscale of Float16: %v, want a DTypeError", err)
	}
}

// After Unscale without Step, Update still changes the scale, and equally on all ranks of a group.
func TestUpdateAfterUnscaleAlone(t *testing.T) {
	devices := []device.Device{newDevice(t), devicetest.Lagging(newDevice(t))}
	commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
		p, opt := scalar(pg.Device(), 1, 1)
		s := must.New(amp.NewScaler(&amp.Options{GrowthInterval: 2, Group: pg}))
		for i, c := range []struct {
			g    float32 // the gradient of rank 0
			want state
		}{{inf, state{Scale: 32768}}, {1, state{Scale: 32768, GrowthTracker: 1}}, {1, state{Scale: 65536}}} {
			g := c.g
			if pg.Rank() == 1 {
				g = 1
			}
			backward(t, s, p, g)
			if err := s.Unscale(opt); err != nil {
				return err
			}
			if s.Update(); stateOf(t, s) != c.want {
				t.Errorf("rank %d, update %d: %+v, want %+v", pg.Rank(), i, stateOf(t, s), c.want)
			}
		}
		return nil
	})
}

// If the device fails during the check, Update does not change the scale.
func TestUpdateOnABrokenDevice(t *testing.T) {
	dev := &traced{Device: newDevice(t)}
	p, opt := scalar(dev, 1, 1)
	s := must.New(amp.NewScaler(nil))
	backward(t, s, p, inf)
	if err := s.Unscale(opt); err != nil {
		t.Fatal(err)
	}
	dev.broken = errors.New("the device is lost")
	before := stateOf(t, s)
	if s.Update(); stateOf(t, s) != before {
		t.Errorf("the state became %+v, from %+v", stateOf(t, s), before)
	}
}

// twice is an optimizer whose parameters contain one variable under two names.
type twice struct {
	*optim.SGD
	again *nn.Parameter
}

func (o twice) Parameters() []*nn.Parameter { return append(o.SGD.Parameters(), o.again) }

// The gradient of tied weights is divided once.
func TestUnscaleOfTiedWeights(t *testing.T) {
	p, opt := scalar(newDevice(t), 1, 0)
	s := must.New(amp.NewScaler(nil))
	backward(t, s, p, 6)
	if err := s.Unscale(twice{opt, nn.NewParameter("again", p.Var())}); err != nil {
		t.Fatal(err)
	}
	if got := p.Grad().Item(); got != 6 {
		t.Errorf("unscaled, the gradient is %v, want 6", got)
	}
}

// Each optimizer skips a step only if its own gradients overflow. All optimizers share the scale.
func TestTwoOptimizers(t *testing.T) {
	dev := newDevice(t)
	a, optA := scalar(dev, 1, 1)
	b, optB := scalar(dev, 1, 1)
	s := must.New(amp.NewScaler(&amp.Options{GrowthInterval: 2}))
	for range 2 {
		backward(t, s, a, inf)
		backward(t, s, b, 0.25)
		step(t, s, optA)
		step(t, s, optB)
		s.Update()
	}
	if a.Item() != 1 || committed(optA) != 0 || b.Item() != 0.5 || committed(optB) != 2 {
		t.Errorf("a %v after %d steps, b %v after %d", a.Item(), committed(optA), b.Item(), committed(optB))
	}
	if s.GetScale() != 16384 {
		t.Errorf("the scale is %v, want 65536/4", s.GetScale())
	}
}

// A step that fails does not change the Scaler. The program may repeat it.
func TestStepFails(t *testing.T) {
	p, opt := scalar(newDevice(t), 1, 1)
	s := must.New(amp.NewScaler(nil))
	backward(t, s, p, inf)
	opt.BeginLoad()
	if err := s.Step(opt); err == nil || errors.Is(err, device.ErrSkipped) {
		t.Fatalf("got %v", err)
	}
	s.Update()
	if s.GetScale() != 65536 {
		t.Errorf("the scale became %v by a step that was none", s.GetScale())
	}
	opt.EndLoad(0)
	train(t, s, p, opt, 1)
	if p.Item() != 0 || stateOf(t, s).GrowthTracker != 1 {
		t.Errorf("afterwards the parameter is %v, the state %+v", p.Item(), stateOf(t, s))
	}
}

func TestDisabled(t *testing.T) {
	p, opt := scalar(newDevice(t), 1, 1)
	s := must.New(amp.NewScaler(&amp.Options{Disabled: true}))
	backward(t, s, p, 3)
	if err := s.Unscale(opt); err != nil {
		t.Fatal(err)
	}
	step(t, s, opt)
	s.Update()
	if p.Item() != -2 || s.GetScale() != 1 {
		t.Errorf("the parameter is %v, the scale %v", p.Item(), s.GetScale())
	}
}

func TestStateIsRestored(t *testing.T) {
	p, opt := scalar(newDevice(t), 1, 0)
	s := must.New(amp.NewScaler(&amp.Options{GrowthInterval: 3}))
	train(t, s, p, opt, 1, 1)
	again := must.New(amp.NewScaler(&amp.Options{GrowthInterval: 3, InitScale: 4}))
	if err := json.Unmarshal(must.New(json.Marshal(s)), again); err != nil {
		t.Fatal(err)
	}
	train(t, again, p, opt, 1)
	if again.GetScale() != 131072 {
		t.Errorf("after two updates, a restart and one more the scale is %v, want twice 65536", again.GetScale())
	}
}

// Restoring a state discards an Unscale or Step without Update. The next call is treated as the
// first.
func TestRestoreDiscardsInterruptedStep(t *testing.T) {
	for name, restore := range map[string]func(s *amp.Scaler, pg *comm.ProcessGroup) error{
		"UnmarshalJSON": func(s *amp.Scaler, _ *comm.ProcessGroup) error { restore(t, s, stateOf(t, s)); return nil },
		"Agree":         func(s *amp.Scaler, pg *comm.ProcessGroup) error { return s.Agree(t.Context(), pg) },
	} {
		for _, stepped := range []bool{false, true} {
			for _, unscale := range []bool{false, true} {
				commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
					p, opt := scalar(pg.Device(), 1, 1)
					s := must.New(amp.NewScaler(nil))
					interrupted, want := s.Unscale, 0.0
					if stepped {
						interrupted, want = s.Step, -1
					}
					backward(t, s, p, 1)
					if err := errors.Join(interrupted(opt), restore(s, pg)); err != nil {
						return err
					}
					backward(t, s, p, 1)
					if unscale {
						if err := s.Unscale(opt); err != nil {
							return err
						}
					}
					if step(t, s, opt); p.Item() != want {
						t.Errorf("%s after Step: %v, then Unscale: %v: the next step went to %v, want %v", name, stepped, unscale, p.Item(), want)
					}
					return nil
				})
			}
		}
	}
}

// counting is a device that counts allocations of host memory.
type counting struct {
	device.Device
	values kernels.Values
	asked  int
}

func (d *counting) Values() *kernels.Values { return &d.values }
func (d *counting) AllocHost(size int) (device.Buffer, error) {
	d.asked++
	return d.Device.AllocHost(size)
}

// The Scaler does not keep an optimizer alive after the program has dropped it. It reuses the memory of
// that optimizer's check for the next optimizer on the same device, and ignores memory of closed devices.
func TestScalerKeepsNoOptimizerAlive(t *testing.T) {
	s := must.New(amp.NewScaler(nil))
	gone := make(chan int, 9)
	for i := range 3 {
		dev := &counting{Device: newDevice(t)}
		for j := range 3 {
			p, opt := scalar(dev, 1, 0)
			runtime.AddCleanup(opt, func(i int) { gone <- i }, 3*i+j)
			train(t, s, p, opt, 1)
		}
		if dev.asked > 2 { // one check for the current optimizer, one for the previous
			t.Errorf("3 optimizers asked for memory %d times, want 2", dev.asked)
		}
		dev.Close()
	}
	s.Update() // no Step since the last Update
	for range cap(gone) {
		runtime.GC()
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Fatal("an optimizer is kept alive")
		}
	}
	runtime.KeepAlive(s)
}

func TestProgrammingErrors(t *testing.T) {
	p, opt := scalar(newDevice(t), 1, 0)
	s := must.New(amp.NewScaler(nil))
	backward(t, s, p, 1)
	if err := s.Unscale(opt); err != nil {
		t.Fatal(err)
	}
	panics[*amp.OrderError](t, "Unscale twice", func() { s.Unscale(opt) })
	step(t, s, opt)
	panics[*amp.OrderError](t, "Step twice", func() { s.Step(opt) })
	panics[*amp.OrderError](t, "Unscale after Step", func() { s.Unscale(opt) })
	for _, o := range []amp.Options{
		{InitScale: -1}, {InitScale: math.NaN()}, {InitScale: 1e39}, {GrowthFactor: 1}, {BackoffFactor: 1}, {BackoffFactor: -1}, {GrowthInterval: -1},
	} {
		if s, err := amp.NewScaler(&o); err == nil || s != nil {
			t.Errorf("%+v: no error", o)
		}
	}
	for _, text := range []string{`{}`, `{"Scale": 1, "GrowthTracker": -1}`} {
		if err := json.Unmarshal([]byte(text), s); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func panics[E error](t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if e, ok := recover().(E); !ok {
			t.Errorf("%s: no panic with a %T", what, e)
		}
	}()
	f()
}
