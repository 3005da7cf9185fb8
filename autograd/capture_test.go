//go:build cgo && linux

package autograd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// openGPU opens the emulated GPU, or the GPU where GODDP_REQUIRE_CUDA says that there is one.
func openGPU(t *testing.T) device.Device {
	t.Helper()
	if os.Getenv("GODDP_REQUIRE_CUDA") == "" {
		return commtest.FakeGPUs(t, 1)[0]
	}
	dev, err := cuda.Open(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

type stepFunc = func(in ...*autograd.Variable) (*autograd.Variable, error)

// sameCaptured checks that run gives the same losses and the same state, bit for bit, whether its steps are
// captured or not.
func sameCaptured(t *testing.T, dev device.Device, run func(capture func(stepFunc) stepFunc) (losses []float64, state []byte)) {
	t.Helper()
	losses, state := run(func(f stepFunc) stepFunc { return f })
	got, gotState := run(func(f stepFunc) stepFunc {
		return autograd.Capture(dev, f, &autograd.CaptureOptions{Required: true})
	})
	if !slices.Equal(got, losses) || !slices.Equal(gotState, state) {
		t.Errorf("captured losses %v\nwant %v; equal states: %v", got, losses, slices.Equal(gotState, state))
	}
	if losses[0] == losses[len(losses)-1] {
		t.Errorf("the losses %v do not change", losses)
	}
}

// lossOf makes a step that has to succeed, and returns its loss.
func lossOf(t *testing.T, step stepFunc, in ...*autograd.Variable) float64 {
	t.Helper()
	loss, err := step(in...)
	if err != nil {
		t.Fatal(err)
	}
	return loss.Item()
}

// optimizer is what the tests use of an optimizer.
type optimizer interface {
	optim.Optimizer
	optim.LRSetter
}

// trained is a model with dropout and batch normalisation, and its optimizer.
type trained struct {
	dev device.Device
	net nn.Module
	opt optimizer
}

func newTrained(t *testing.T, dev device.Device, dt device.DType, newOptimizer func([]*nn.Parameter) (optimizer, error)) *trained {
	t.Helper()
	net := nn.Sequential(nn.Linear(6, 16, nil), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(16, nil), nn.Linear(16, 3, nil))
	if err := nn.Place(net, dev, 5); err != nil {
		t.Fatal(err)
	}
	if dt != device.Float32 {
		if err := nn.Cast(net, dt, nil); err != nil {
			t.Fatal(err)
		}
	}
	autograd.Generator(dev).Seed(11)
	opt, err := newOptimizer(net.Parameters())
	if err != nil {
		t.Fatal(err)
	}
	return &trained{dev, net, opt}
}

// step makes one step with gradient clipping.
func (m *trained) step(in ...*autograd.Variable) (*autograd.Variable, error) {
	m.opt.ZeroGrad()
	loss := nn.MSELoss(m.net.Forward(in[0]), in[1], nil)
	if err := loss.Backward(nil); err != nil {
		return nil, err
	}
	if _, err := optim.ClipGradNorm(m.net.Parameters(), 0.5, nil); err != nil {
		return nil, err
	}
	return loss, m.opt.Step()
}

// batch returns the n-th batch of the given size.
func (m *trained) batch(n, size int) (x, y *autograd.Variable) {
	make := func(columns int, phase float64) *autograd.Variable {
		data := make([]float32, size*columns)
		for i := range data {
			data[i] = float32(math.Sin(phase + float64(i)*1.7 + float64(n)*0.9))
		}
		v := autograd.FromSlice(m.dev, data, size, columns)
		return autograd.Cast(v, m.net.Parameters()[0].DType())
	}
	return make(6, 0), make(3, 1)
}

// state returns the bytes of all parameters, buffers and optimizer state.
func (m *trained) state(t *testing.T) []byte {
	t.Helper()
	var all []byte
	add := func(v *autograd.Variable) {
		b, err := v.Bytes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	for _, p := range m.net.Parameters() {
		add(p.Var())
	}
	for _, b := range nn.Buffers(m.net) {
		add(b.Var())
	}
	kept, err := m.opt.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range kept {
		add(b.Var())
	}
	return all
}

var optimizers = map[string]func([]*nn.Parameter) (optimizer, error){
	"SGD": func(p []*nn.Parameter) (optimizer, error) {
		return optim.NewSGD(p, &optim.SGDOptions{LR: 0.1, Momentum: 0.9, MasterWeights: true})
	},
	"AdamW": func(p []*nn.Parameter) (optimizer, error) {
		return optim.NewAdamW(p, &optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1, MasterWeights: true})
	},
	"RMSprop": func(p []*nn.Parameter) (optimizer, error) {
		return optim.NewRMSProp(p, &optim.RMSPropOptions{LR: 0.01, Momentum: 0.5, Centered: true, MasterWeights: true})
	},
}

// Captured steps equal steps that are not captured, with a schedule, dropout, batch normalisation, clipping, and
// batches of two sizes. A step is captured in its third call. Its replays count as many operations.
func TestEmulatedCapturedStepsEqualEagerSteps(t *testing.T) {
	dev := openGPU(t)
	for name, dt := range map[string]device.DType{"SGD": device.Float32, "RMSprop": device.Float32, "AdamW": device.BFloat16} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			sameCaptured(t, dev, func(capture func(stepFunc) stepFunc) (losses []float64, state []byte) {
				m := newTrained(t, dev, dt, optimizers[name])
				runs = 0
				step := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
					runs++
					return m.step(in...)
				})
				for n := range 20 {
					m.opt.SetLR(0.1 / float64(1+n/5))
					size := 8
					if n%4 == 3 {
						size = 5
					}
					x, y := m.batch(n, size)
					before := autograd.Operations(dev, dt)
					losses = append(losses, lossOf(t, step, x, y))
					losses = append(losses, autograd.Operations(dev, dt)-before)
					if committed, consistent := m.opt.Committed(); committed != n+1 || !consistent {
						t.Fatalf("after step %d: %d are committed, consistent: %v", n, committed, consistent)
					}
				}
				return losses, m.state(t)
			})
			if runs != 6 {
				t.Errorf("the step function ran %d times, want 6: twice and once captured for each size", runs)
			}
		})
	}
}

// What a captured step depends on decides whether its capture is used.
func TestEmulatedCaptureRecordsAgain(t *testing.T) {
	dev := openGPU(t)
	m := newTrained(t, dev, device.Float32, optimizers["AdamW"])
	runs := 0
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		runs++
		return m.step(in...)
	}, &autograd.CaptureOptions{Required: true, Warmup: 1})
	call := func(what string, want int) {
		t.Helper()
		if _, err := step(m.batch(0, 4)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if runs != want {
			t.Errorf("%s: the step function has run %d times, want %d", what, runs, want)
		}
	}
	call("the first step", 1)
	call("the second step", 2)
	call("the third step", 2)
	m.opt.SetLR(0.5)
	call("another learning rate", 2)
	nn.Eval(m.net)
	call("evaluation mode", 3)
	nn.Train(m.net)
	call("training mode again", 3)
	opt := m.opt.(*optim.AdamW)
	opt.Groups()[0].Eps = 0.1
	call("another option", 4)
	m.net.Parameters()[0].Freeze()
	call("a frozen parameter", 5)
	m.opt.ZeroGrad() // the step begins with ZeroGrad itself
	call("gradients were zeroed", 5)
	autograd.Generator(dev).Seed(3)
	call("another seed", 6)
	opt.Groups()[0].LR = -1
	if _, err := step(m.batch(0, 4)); err == nil || !strings.Contains(err.Error(), "LR is -1") {
		t.Errorf("with a negative learning rate the step gave %v", err)
	}
}

// The steps of one optimizer, and the micro-steps whose gradients it adds up, can be captured apart.
func TestEmulatedCapturedAccumulation(t *testing.T) {
	dev := openGPU(t)
	sameCaptured(t, dev, func(capture func(stepFunc) stepFunc) (losses []float64, state []byte) {
		m := newTrained(t, dev, device.Float32, optimizers["SGD"])
		micro := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
			loss := nn.MSELoss(m.net.Forward(in[0]), in[1], nil)
			return loss, loss.Backward(nil)
		})
		update := capture(func(...*autograd.Variable) (*autograd.Variable, error) {
			err := m.opt.Step()
			m.opt.ZeroGrad()
			return nil, err
		})
		for n := range 15 {
			loss, err := micro(m.batch(n, 4))
			if err != nil {
				t.Fatal(err)
			}
			losses = append(losses, loss.Item())
			if n%3 != 2 {
				continue
			}
			if _, err := update(); err != nil {
				t.Fatal(err)
			}
			losses = append(losses, loss.Item()) // the update frees nothing
			if g := m.net.Parameters()[0].Grad(); g != nil {
				t.Fatal("there is a gradient after ZeroGrad")
			}
		}
		return losses, m.state(t)
	})
}

// A step that cannot be captured says why.
func TestEmulatedStepsThatCannotBeCaptured(t *testing.T) {
	dev := openGPU(t)
	steps := map[string]func(m *trained, in ...*autograd.Variable) (*autograd.Variable, error){
		"a wait for the GPU": func(m *trained, in ...*autograd.Variable) (*autograd.Variable, error) {
			loss, err := m.step(in...)
			if err == nil {
				_, err = loss.TryItem(t.Context())
			}
			return loss, err
		},
		"a copy from the program's memory": func(m *trained, in ...*autograd.Variable) (*autograd.Variable, error) {
			loss, err := m.step(in...)
			return autograd.Mul(loss, autograd.Scalar(dev, 1)), err
		},
		"this step is odd": func(m *trained, in ...*autograd.Variable) (*autograd.Variable, error) {
			n, _ := m.opt.Committed()
			loss, err := m.step(in...)
			if err == nil && n == 2 {
				err = errors.New("this step is odd")
			}
			return loss, err
		},
	}
	for want, step := range steps {
		m := newTrained(t, dev, device.Float32, optimizers["SGD"])
		strict := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) { return step(m, in...) },
			&autograd.CaptureOptions{Required: true})
		for n := range 3 {
			_, err := strict(m.batch(n, 4))
			if n == 2 && (err == nil || !strings.Contains(err.Error(), want)) || n < 2 && err != nil {
				t.Errorf("call %d gave %v, want an error with %q in the third call only", n, err, want)
			}
		}
		wantSteps := 2
		if want == "this step is odd" { // an error of the step, which then runs uncaptured
			wantSteps = 3
		}
		if committed, consistent := m.opt.Committed(); committed != wantSteps || !consistent {
			t.Errorf("%q: %d steps are committed, want %d; consistent: %v", want, committed, wantSteps, consistent)
		}
	}
}

// Captured steps need the memory that the same steps need uncaptured, and a copy of the inputs. It is
// free again when the captured step is unreachable.
func TestEmulatedMemoryOfCapturedSteps(t *testing.T) {
	dev := openGPU(t)
	m := newTrained(t, dev, device.Float32, optimizers["AdamW"])
	x, y := m.batch(0, 2048)
	for range 3 {
		if _, err := m.step(x, y); err != nil {
			t.Fatal(err)
		}
	}
	eager := dev.Memory()
	func() {
		step := autograd.Capture(dev, m.step, &autograd.CaptureOptions{Required: true, Warmup: 1})
		var kept *autograd.Variable
		for n := range 10 {
			loss, err := step(x, y)
			if err != nil {
				t.Fatal(err)
			}
			if n == 5 {
				kept = loss.Retain()
			}
		}
		was := kept.Item()
		if _, err := step(x, y); err != nil {
			t.Fatal(err)
		}
		if kept.Item() != was {
			t.Error("a later step overwrote a retained loss")
		}
		captured := dev.Memory()
		inputs := int64(x.Tensor().Bytes()+y.Tensor().Bytes()) * 5 / 4 // blocks are rounded up
		if most := eager.Held() + inputs + 1<<16; captured.Held() > most {
			t.Errorf("captured steps hold %d bytes, want at most %d", captured.Held(), most)
		}
		runtime.KeepAlive(step)
	}()
	for range 100 {
		runtime.GC()
		runtime.Gosched()
		if _, err := m.step(x, y); err != nil { // frees what the collector found
			t.Fatal(err)
		}
		if dev.Memory().InUse <= eager.InUse+1<<16 {
			return
		}
	}
	t.Errorf("%d bytes are in use after the captured step is unreachable, %d before", dev.Memory().InUse, eager.InUse)
}

// An input that was written in place, or whose memory belongs to another variable now, is copied again.
func TestEmulatedCapturedStepSeesItsInputs(t *testing.T) {
	dev := openGPU(t)
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		return autograd.Sum(in[0]), nil
	}, &autograd.CaptureOptions{Required: true, Warmup: 1})
	call := func(what string, x *autograd.Variable, want float64) {
		t.Helper()
		if sum, err := step(x); err != nil || sum.Item() != want {
			t.Errorf("%s: the sum is %v, %v; want %v", what, sum.Item(), err, want)
		}
	}
	x := autograd.FromSlice(dev, []float32{1, 2}).Retain()
	for range 3 {
		call("the same input", x, 3)
	}
	x.BumpVersion()
	if err := dev.Kernels().Fill(dev.Compute(), x.Tensor(), 5); err != nil {
		t.Fatal(err)
	}
	call("after a write in place", x, 10)
	call("the same input again", x, 10)
	for i := range 5 {
		y := autograd.FromSlice(dev, []float32{float32(i), 1})
		call("another input", y, float64(i+1))
		y.Free()
	}
	mem := device.NewTensor(x.Tensor().Buf, device.Float32, 2)
	for i := range 3 { // memory that the program may write at any time
		if err := dev.Kernels().Fill(dev.Compute(), mem, float64(i)); err != nil {
			t.Fatal(err)
		}
		call("an input over memory of the program", autograd.FromTensor(dev, mem), float64(2*i))
	}
}

// Captures of several shapes share their memory, whatever their order is. The arena rounds sizes, and small shapes use the
// blocks of large ones.
func TestEmulatedCapturesOfSeveralShapesShareMemory(t *testing.T) {
	held := func(sizes ...int) int64 {
		dev := openGPU(t)
		m := newTrained(t, dev, device.Float32, optimizers["AdamW"])
		step := autograd.Capture(dev, m.step, &autograd.CaptureOptions{Required: true, Warmup: 1})
		for range 3 {
			for _, size := range sizes {
				x, y := m.batch(0, size)
				lossOf(t, step, x, y)
				x.Free()
				y.Free()
			}
		}
		defer runtime.KeepAlive(step)
		return dev.Memory().InUse
	}
	one := held(4096)
	for _, sizes := range [][]int{{4096, 3700, 3300, 2900, 2500, 2100}, {2100, 2500, 2900, 3300, 3700, 4096}} {
		if got := held(sizes...); got > one*17/10 {
			t.Errorf("captures of %v samples hold %d bytes, a capture of 4096 samples %d", sizes, got, one)
		}
	}
}

// A captured step keeps the memory that it reads, also if the program drops its variables.
func TestEmulatedCapturedStepKeepsWhatItReads(t *testing.T) {
	dev := openGPU(t)
	const n = 1 << 16
	factor := wave(dev, 1, 1, n)
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		return autograd.Sum(autograd.Mul(in[0], factor)), nil
	}, &autograd.CaptureOptions{Required: true})
	x := wave(dev, 2, 1, n)
	want := lossOf(t, step, x)
	for range 2 {
		lossOf(t, step, x)
	}
	factor = nil
	for range 3 {
		runtime.GC()
		wave(dev, 3, 1, n).Retain() // it would get the memory
	}
	if got := lossOf(t, step, x); got != want {
		t.Errorf("after the garbage collection the step gives %v, want %v", got, want)
	}
}

// wave returns a batch of rows of numbers.
func wave(dev device.Device, n, rows, columns int) *autograd.Variable {
	data := make([]float32, rows*columns)
	for i := range data {
		data[i] = float32((7*i+3*n)%11)/11 - 0.5
	}
	return autograd.FromSlice(dev, data, rows, columns)
}

// A captured step runs work of its backward pass beside other work: the gradients of weights, also of a weight that
// operations of several kinds share, that a Checkpoint uses, and whose gradients two backward passes add up; and a
// residual network's branch, which reads a gradient that travels on.
func TestEmulatedCapturedStepsWithBranches(t *testing.T) {
	dev := openGPU(t)
	const size = 24
	for name, loss := range map[string]func(x *autograd.Variable, layers []*nn.LinearLayer, norm *nn.NormLayer) *autograd.Variable{
		"shared weights": func(x *autograd.Variable, layers []*nn.LinearLayer, norm *nn.NormLayer) *autograd.Variable {
			w := []*autograd.Variable{layers[0].Weight.Var(), layers[0].Bias.Var(), layers[1].Weight.Var(), layers[1].Bias.Var()}
			x = autograd.MatMul(autograd.LinearReLU(norm.Forward(x), w[0], w[1]), w[2])
			for range 6 {
				x = autograd.Linear(x, w[2], w[3])
			}
			x = autograd.MatMul(x, w[2])
			return autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
				return autograd.Linear(autograd.LinearReLU(x, w[0], nil), w[2], w[1])
			}, autograd.Add(x, w[3]))
		},
		"residuals": func(x *autograd.Variable, layers []*nn.LinearLayer, norm *nn.NormLayer) *autograd.Variable {
			h := x
			for range 3 {
				var normed *autograd.Variable
				x, normed = norm.ForwardAdd(x, h)
				h = layers[1].Forward(autograd.GELU(layers[0].Forward(normed)))
			}
			return autograd.Add(x, h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			sameCaptured(t, dev, func(capture func(stepFunc) stepFunc) (losses []float64, _ []byte) {
				norm, layers := nn.LayerNorm(size, nil), []*nn.LinearLayer{nn.Linear(size, size, nil), nn.Linear(size, size, nil)}
				net := nn.Sequential(norm, layers[0], layers[1])
				if err := nn.Place(net, dev, 5); err != nil {
					t.Fatal(err)
				}
				opt, err := optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.05})
				if err != nil {
					t.Fatal(err)
				}
				step := capture(func(in ...*autograd.Variable) (y *autograd.Variable, err error) {
					opt.ZeroGrad()
					for range 2 {
						y = loss(in[0], layers, norm)
						y = autograd.Mean(autograd.Mul(y, y))
						if err := y.Backward(nil); err != nil {
							return nil, err
						}
					}
					return y, opt.Step()
				})
				for n := range 8 {
					losses = append(losses, lossOf(t, step, wave(dev, n, 16, size)))
				}
				return losses, nil
			})
		})
	}
}

// The gradients of weights are on a branch of a captured step, unless their products fill a GPU, or read the memory of a
// Source, which has other values after the next operation.
func TestEmulatedBranchOfACapturedStep(t *testing.T) {
	linear := func(in, out int) nn.Module { return nn.Linear(in, out, nil) }
	for _, c := range []struct {
		name      string
		layers    []nn.Module
		hasSource bool // of the input
		branches  int
	}{
		{"small", []nn.Module{linear(128, 64), linear(64, 128)}, false, 2},
		{"large", []nn.Module{linear(128, 1<<14), linear(1<<14, 128)}, false, 1},
		{"one", []nn.Module{linear(128, 64)}, false, 2},
		{"one, with a Source", []nn.Module{linear(128, 64)}, true, 1},
	} {
		dev, net := commtest.FakeGPUs(t, 1)[0], nn.Sequential(c.layers...)
		if err := nn.Place(net, dev, 5); err != nil {
			t.Fatal(err)
		}
		query := autograd.Zeros(dev, device.Float32, 128).RequireGrad()
		if c.hasSource {
			gradsink.SetSource(query, &supplier{})
		}
		step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
			query.ZeroGrad()
			for _, p := range net.Parameters() {
				p.Var().ZeroGrad()
			}
			loss := autograd.Mean(net.Forward(autograd.Reshape(query, 1, 128)))
			return loss, loss.Backward(nil)
		}, &autograd.CaptureOptions{Required: true, Warmup: 1})
		x, trace := autograd.Zeros(dev, device.Float32, 1).Retain(), profile.Of(dev)
		for range 3 {
			lossOf(t, step, x)
			trace.Start() // behind the first step
		}
		trace.Stop()
		var file bytes.Buffer
		var read struct {
			TraceEvents []struct {
				Name string
				TID  int
				Args struct{ Graph int }
			}
		}
		if err := errors.Join(trace.WriteChrome(&file, 0), json.Unmarshal(file.Bytes(), &read)); err != nil {
			t.Fatal(err)
		}
		streams := map[int]bool{}
		for _, e := range read.TraceEvents {
			if e.Name == "fake_gemm" && e.Args.Graph != 0 {
				streams[e.TID] = true
			}
		}
		if len(streams) != c.branches {
			t.Errorf("%s: the products of a step are on %d branches, want %d", c.name, len(streams), c.branches)
		}
	}
}

// A twoPart model has two layers, of which a step may use only the second.
type twoPart struct {
	first, second nn.Module
	net           nn.Module
	opt           *optim.SGD
	runs          int // how often step has run
}

func newTwoPart(t *testing.T, dev device.Device, change func(m *twoPart)) *twoPart {
	t.Helper()
	m := &twoPart{first: nn.Linear(6, 6, nil), second: nn.Linear(6, 3, nil)}
	m.net = nn.Sequential(m.first, m.second)
	if change != nil {
		change(m)
	}
	err := nn.Place(m.net, dev, 5)
	if err == nil {
		m.opt, err = optim.NewSGD(m.net.Parameters(), &optim.SGDOptions{LR: 0.1})
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *twoPart) step(in ...*autograd.Variable) (*autograd.Variable, error) {
	return m.stepOf(m.net, in)
}

func (m *twoPart) stepOf(part nn.Module, in []*autograd.Variable) (*autograd.Variable, error) {
	m.runs++
	y := part.Forward(in[0])
	loss := autograd.Mean(autograd.Mul(y, y))
	err := loss.Backward(nil)
	if err == nil {
		err = m.opt.Step()
	}
	m.opt.ZeroGrad()
	return loss, err
}

// losses returns those of n calls of step. before is called before each.
func losses(t *testing.T, dev device.Device, n int, step stepFunc, before func(n int)) (all []float64) {
	t.Helper()
	x := autograd.FromSlice(dev, []float32{.1, .2, .3, .4, .5, .6}, 1, 6).Retain()
	for i := range n {
		if before != nil {
			before(i)
		}
		all = append(all, lossOf(t, step, x))
	}
	return all
}

// A captured step trains parameters from the step on in which they are unfrozen, although they were frozen before
// they had a place on the device.
func TestEmulatedUnfreezeIsSeenByCapturedSteps(t *testing.T) {
	dev := openGPU(t)
	sameCaptured(t, dev, func(capture func(stepFunc) stepFunc) ([]float64, []byte) {
		m := newTwoPart(t, dev, func(m *twoPart) {
			for _, p := range m.first.Parameters() {
				p.Freeze()
			}
		})
		return losses(t, dev, 10, capture(m.step), func(n int) {
			if n == 6 {
				for _, p := range m.first.Parameters() {
					p.Unfreeze()
				}
			}
		}), nil
	})
}

// An input that requires a gradient gets it, also after the step was captured.
func TestEmulatedInputOfACapturedStepGetsItsGradient(t *testing.T) {
	dev := openGPU(t)
	w := autograd.FromSlice(dev, []float32{1, 2}).RequireGrad()
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		loss := autograd.Sum(autograd.Mul(in[0], w))
		return loss, loss.Backward(nil)
	}, &autograd.CaptureOptions{Log: slog.New(slog.DiscardHandler)})
	for n := range 6 {
		x := autograd.FromSlice(dev, []float32{1, 2})
		if n == 5 {
			x.RequireGrad()
		}
		if _, err := step(x); err != nil {
			t.Fatal(err)
		}
		if n == 5 && x.Grad() == nil {
			t.Error("the input has no gradient")
		}
	}
}

// A parameter that no step uses does not keep a step from being captured.
func TestEmulatedStepWithAnUnusedParameterIsCaptured(t *testing.T) {
	dev := openGPU(t)
	m := newTwoPart(t, dev, nil)
	step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) { return m.stepOf(m.second, in) },
		&autograd.CaptureOptions{Required: true})
	losses(t, dev, 10, step, nil)
	if m.runs != 3 {
		t.Errorf("step ran %d times in 10 calls, want 3: the last one is captured", m.runs)
	}
}

// uncaptured is the identity. Its backward pass fails while a step is captured.
type uncaptured struct{ dev device.Device }

var errUncaptured = errors.New("no memory, as it were")

func (uncaptured) Name() string                         { return "uncaptured" }
func (uncaptured) Shape(in []device.Shape) device.Shape { return in[0] }
func (uncaptured) Forward(c *autograd.Call) error {
	return c.Kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: 1}, c.In[0])
}

func (f uncaptured) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if f.dev.(interface{ Capturing() bool }).Capturing() {
		return errUncaptured
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// A capture whose backward pass fails changes nothing: the step runs uncaptured. After eight such captures in a
// row Capture gives up, and says why.
func TestEmulatedFailedCaptureChangesNothing(t *testing.T) {
	dev := openGPU(t)
	want := losses(t, dev, 12, newTwoPart(t, dev, nil).step, nil)
	m := newTwoPart(t, dev, nil)
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		m.runs++
		y := autograd.Apply(uncaptured{dev}, m.first.Forward(in[0]))
		y = m.second.Forward(y)
		loss := autograd.Mean(autograd.Mul(y, y))
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		err := m.opt.Step()
		m.opt.ZeroGrad()
		return loss, err
	}
	var log strings.Builder
	got := losses(t, dev, 12, autograd.Capture(dev, step, &autograd.CaptureOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}), nil)
	if !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
	if n := strings.Count(log.String(), "steps run uncaptured"); n != 1 || m.runs != 12+8 {
		t.Errorf("%d lines, want one; step ran %d times, want 12 and 8 to be captured; log:\n%s", n, m.runs, &log)
	}
	strict := autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	for n := range 12 {
		if _, err := strict(autograd.Zeros(dev, device.Float32, 1, 6)); errors.Is(err, errUncaptured) != (n >= 9) {
			t.Errorf("call %d gave %v, want the error of the capture from the tenth call on", n, err)
		}
	}
}

// A captured step may be a part of a captured step, also of one that ran uncaptured at first.
func TestEmulatedCaptureWithinCapture(t *testing.T) {
	dev := openGPU(t)
	for _, plain := range []int{0, 4} { // the first calls, in which only the inner step is captured
		sameCaptured(t, dev, func(capture func(stepFunc) stepFunc) ([]float64, []byte) {
			m, n := newTwoPart(t, dev, nil), 0
			inner := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
				y := m.net.Forward(in[0])
				loss := autograd.Mean(autograd.Mul(y, y))
				return loss, loss.Backward(nil)
			})
			outer := func(in ...*autograd.Variable) (*autograd.Variable, error) {
				loss, err := inner(in...)
				if err == nil {
					err = m.opt.Step()
				}
				m.opt.ZeroGrad()
				return loss, err
			}
			captured := capture(outer)
			return losses(t, dev, 12, func(in ...*autograd.Variable) (*autograd.Variable, error) {
				if n++; n <= plain {
					return outer(in...)
				}
				return captured(in...)
			}, nil), nil
		})
	}
}

// Within Scope a step runs uncaptured, which is an error if capturing is required.
func TestEmulatedCaptureWithinScope(t *testing.T) {
	dev := openGPU(t)
	m := newTwoPart(t, dev, nil)
	for _, required := range []bool{false, true} {
		step := autograd.Capture(dev, m.step, &autograd.CaptureOptions{Required: required})
		for range 4 {
			autograd.Scope(dev, func() {
				if _, err := step(autograd.Zeros(dev, device.Float32, 1, 6)); (err != nil) != required {
					t.Errorf("required %v: %v", required, err)
				}
			})
		}
	}
}

// Where no step can be captured, a step that must be is an error, and another is logged.
func TestCaptureOnTheCPU(t *testing.T) {
	dev := newDevice(t)
	m := newTwoPart(t, dev, nil)
	var log strings.Builder
	losses(t, dev, 5, autograd.Capture(dev, m.step, &autograd.CaptureOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}), nil)
	if n := strings.Count(log.String(), "the device cpu captures no steps"); n != 1 || m.runs != 5 {
		t.Errorf("%d lines, want one; step ran %d times, want 5; log:\n%s", n, m.runs, &log)
	}
	strict := autograd.Capture(dev, m.step, &autograd.CaptureOptions{Required: true})
	if _, err := strict(autograd.Zeros(dev, device.Float32, 1, 6)); err == nil {
		t.Error("no error in the first call, though capturing is required")
	}
}
