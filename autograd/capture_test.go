//go:build cgo && linux

package autograd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// openGPU opens the GPU, or a fake one if the machine has none.
func openGPU(t *testing.T) device.Device {
	t.Helper()
	if n, err := cuda.Count(); n == 0 {
		if os.Getenv("GODDP_REQUIRE_CUDA") != "" {
			t.Fatal("no GPU: ", err)
		}
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
	net := nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.Linear(16, 3))
	if err := nn.Place(net, dev, 5); err != nil {
		t.Fatal(err)
	}
	if dt != device.Float32 {
		if err := nn.Cast(net, dt); err != nil {
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
	loss := nn.MSELoss(m.net.Forward(in[0]), in[1])
	if err := loss.Backward(); err != nil {
		return nil, err
	}
	if _, err := optim.ClipGradNorm(m.net.Parameters(), 0.5); err != nil {
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

// Captured steps give the losses and the state of steps that are not captured, bit for bit, with a
// schedule, dropout, batch normalisation, clipping, and batches of two sizes.
func TestEmulatedCapturedStepsEqualEagerSteps(t *testing.T) {
	dev := openGPU(t)
	const steps = 100
	for name, newOptimizer := range optimizers {
		for _, dt := range []device.DType{device.Float32, device.BFloat16} {
			t.Run(fmt.Sprint(name, " ", dt), func(t *testing.T) {
				run := func(captured bool) (losses []float64, state []byte, runs int) {
					m := newTrained(t, dev, dt, newOptimizer)
					step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
						runs++
						return m.step(in...)
					}
					if captured {
						step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
					}
					for n := range steps {
						m.opt.SetLR(0.1 / float64(1+n/10))
						size := 8
						if n%7 == 6 {
							size = 5
						}
						loss, err := step(m.batch(n, size))
						if err != nil {
							t.Fatalf("step %d: %v", n, err)
						}
						losses = append(losses, loss.Item())
						if committed, consistent := m.opt.Committed(); committed != n+1 || !consistent {
							t.Fatalf("after step %d: %d are committed, consistent: %v", n, committed, consistent)
						}
					}
					return losses, m.state(t), runs
				}
				losses, state, _ := run(false)
				gotLosses, gotState, runs := run(true)
				if !slices.Equal(gotLosses, losses) {
					t.Errorf("captured losses %v\nwant %v", gotLosses, losses)
				}
				if !slices.Equal(gotState, state) {
					t.Error("the state after captured steps differs")
				}
				if runs != 6 {
					t.Errorf("the step function ran %d times, want 6: twice and once recorded for each size", runs)
				}
				if first, last := losses[0], losses[steps-2]; !(last < first) {
					t.Errorf("the loss went from %v to %v", first, last)
				}
			})
		}
	}
}

// What a recorded step depends on decides whether its recording is used.
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
	run := func(capture func(func(...*autograd.Variable) (*autograd.Variable, error)) func(...*autograd.Variable) (*autograd.Variable, error)) (losses []float64, state []byte) {
		m := newTrained(t, dev, device.Float32, optimizers["SGD"])
		micro := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
			loss := nn.MSELoss(m.net.Forward(in[0]), in[1])
			return loss, loss.Backward()
		})
		update := capture(func(...*autograd.Variable) (*autograd.Variable, error) {
			err := m.opt.Step()
			m.opt.ZeroGrad()
			return nil, err
		})
		for n := range 30 {
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
	}
	losses, state := run(func(f func(...*autograd.Variable) (*autograd.Variable, error)) func(...*autograd.Variable) (*autograd.Variable, error) {
		return f
	})
	gotLosses, gotState := run(func(f func(...*autograd.Variable) (*autograd.Variable, error)) func(...*autograd.Variable) (*autograd.Variable, error) {
		return autograd.Capture(dev, f, &autograd.CaptureOptions{Required: true})
	})
	if !slices.Equal(gotLosses, losses) || !slices.Equal(gotState, state) {
		t.Errorf("captured losses %v\nwant %v; equal states: %v", gotLosses, losses, slices.Equal(gotState, state))
	}
}

// A step that cannot be captured says why, and runs uncaptured unless that is an error.
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
	m, plain := newTrained(t, dev, device.Float32, optimizers["SGD"]), newTrained(t, dev, device.Float32, optimizers["SGD"])
	lenient := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
		return steps["a wait for the GPU"](m, in...)
	}, nil)
	autograd.Generator(dev).Seed(11)
	for n := range 5 {
		if _, err := lenient(m.batch(n, 4)); err != nil {
			t.Fatal(err)
		}
	}
	autograd.Generator(dev).Seed(11)
	for n := range 5 {
		if _, err := plain.step(plain.batch(n, 4)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(m.state(t), plain.state(t)) {
		t.Error("the attempt to capture changed something")
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

// A captured step computes the gradients of weights on a stream of their own. They are those of an uncaptured
// step, bit for bit, also of a weight that operations of several kinds share, that a Checkpoint uses, and whose
// gradients two backward passes add up.
func TestEmulatedCapturedGradientsOfSharedWeights(t *testing.T) {
	dev := openGPU(t)
	run := func(captured bool) []float64 {
		net := nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24))
		if err := nn.Place(net, dev, 5); err != nil {
			t.Fatal(err)
		}
		var w []*autograd.Variable
		for _, p := range net.Parameters() {
			w = append(w, p.Var())
		}
		opt, err := optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
			opt.ZeroGrad()
			var loss *autograd.Variable
			for range 2 {
				x := autograd.MatMul(autograd.LinearReLU(in[0], w[0], w[1]), w[2])
				for range 6 {
					x = autograd.Linear(x, w[2], w[3])
				}
				x = autograd.MatMul(x, w[2])
				x = autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
					return autograd.Linear(autograd.LinearReLU(x, w[0], nil), w[2], w[1])
				}, autograd.Add(x, w[3]))
				loss = autograd.Mean(autograd.Mul(x, x))
				if err := loss.Backward(); err != nil {
					return nil, err
				}
			}
			return loss, opt.Step()
		}
		if captured {
			step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true, Warmup: 1})
		}
		var losses []float64
		for n := range 20 {
			data := make([]float32, 16*24)
			for i := range data {
				data[i] = float32((7*i+3*n)%11)/11 - 0.5
			}
			loss, err := step(autograd.FromSlice(dev, data, 16, 24))
			if err != nil {
				t.Fatal(err)
			}
			losses = append(losses, loss.Item())
		}
		return losses
	}
	if got, want := run(true), run(false); !slices.Equal(got, want) || want[0] == want[19] {
		t.Errorf("captured losses %v\nwant %v", got, want)
	}
}

// The gradients of weights are on a branch of a captured step, unless their products fill a GPU.
func TestEmulatedBranchOfACapturedStep(t *testing.T) {
	for _, c := range []struct{ width, branches int }{{64, 2}, {1 << 14, 1}} {
		dev := commtest.FakeGPUs(t, 1)[0]
		net := nn.Sequential(nn.Linear(128, c.width), nn.Linear(c.width, 128))
		if err := nn.Place(net, dev, 5); err != nil {
			t.Fatal(err)
		}
		step := autograd.Capture(dev, func(in ...*autograd.Variable) (*autograd.Variable, error) {
			for _, p := range net.Parameters() {
				p.Var().ZeroGrad()
			}
			loss := autograd.Mean(net.Forward(in[0]))
			return loss, loss.Backward()
		}, &autograd.CaptureOptions{Required: true, Warmup: 1})
		x, trace := autograd.Zeros(dev, device.Float32, 1, 128).Retain(), profile.Of(dev)
		for range 3 {
			if _, err := step(x); err != nil {
				t.Fatal(err)
			}
			trace.Start() // behind the first step
		}
		if err := dev.Compute().Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		trace.Stop()
		var file bytes.Buffer
		if err := trace.WriteChrome(&file, 0); err != nil {
			t.Fatal(err)
		}
		var read struct {
			TraceEvents []struct {
				Name string
				TID  int
				Args struct{ Graph int }
			}
		}
		if err := json.Unmarshal(file.Bytes(), &read); err != nil {
			t.Fatal(err)
		}
		streams := map[int]bool{}
		for _, e := range read.TraceEvents {
			if e.Name == "fake_gemm" && e.Args.Graph != 0 {
				streams[e.TID] = true
			}
		}
		if len(streams) != c.branches {
			t.Errorf("the products of a step with layers of %d are on %d branches, want %d", c.width, len(streams), c.branches)
		}
	}
}

// In a captured step, a branch of a residual network reads a gradient on a stream of its own while the
// gradient of the sum travels on. The losses are those of an uncaptured step, bit for bit.
func TestEmulatedCapturedResiduals(t *testing.T) {
	dev := openGPU(t)
	const size = 64
	run := func(captured bool) []float64 {
		norm, widen, narrow := nn.LayerNorm(size), nn.Linear(size, size), nn.Linear(size, size)
		net := nn.Sequential(norm, widen, narrow)
		if err := nn.Place(net, dev, 5); err != nil {
			t.Fatal(err)
		}
		opt, err := optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
			opt.ZeroGrad()
			x, h := in[0], in[0]
			for range 3 {
				var normed *autograd.Variable
				x, normed = norm.ForwardAdd(x, h)
				h = narrow.Forward(autograd.GELU(widen.Forward(normed)))
			}
			x = autograd.Add(x, h)
			loss := autograd.Mean(autograd.Mul(x, x))
			if err := loss.Backward(); err != nil {
				return nil, err
			}
			return loss, opt.Step()
		}
		if captured {
			step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true, Warmup: 1})
		}
		var losses []float64
		for n := range 8 {
			data := make([]float32, 16*size)
			for i := range data {
				data[i] = float32((7*i+3*n)%11)/11 - 0.5
			}
			loss, err := step(autograd.FromSlice(dev, data, 16, size))
			if err != nil {
				t.Fatal(err)
			}
			losses = append(losses, loss.Item())
		}
		return losses
	}
	if got, want := run(true), run(false); !slices.Equal(got, want) || want[0] == want[7] {
		t.Errorf("captured losses %v\nwant %v", got, want)
	}
}
