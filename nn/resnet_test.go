package nn_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testpython"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// basicBlock is ResNet's block of two convolutions, with torchvision's names.
type basicBlock struct {
	nn.Container
	conv1, conv2 *nn.ConvLayer
	bn1, bn2     *nn.BatchNormLayer
	downsample   *nn.Sequence // or nil
}

func newBasicBlock(in, out, stride int) *basicBlock {
	b := &basicBlock{}
	conv := func(in, kernel, stride int) *nn.ConvLayer {
		return nn.Conv2d(in, out, kernel, nn.ConvOptions{Stride: stride, Padding: kernel / 2, NoBias: true})
	}
	b.conv1 = nn.Add(&b.Container, "conv1", conv(in, 3, stride))
	b.bn1 = nn.Add(&b.Container, "bn1", nn.BatchNorm2d(out))
	b.conv2 = nn.Add(&b.Container, "conv2", conv(out, 3, 1))
	b.bn2 = nn.Add(&b.Container, "bn2", nn.BatchNorm2d(out))
	if stride != 1 || in != out {
		b.downsample = nn.Add(&b.Container, "downsample", nn.Sequential(conv(in, 1, stride), nn.BatchNorm2d(out)))
	}
	return b
}

func (b *basicBlock) Forward(x *autograd.Variable) *autograd.Variable {
	y := autograd.ReLU(b.bn1.Forward(b.conv1.Forward(x)))
	y = b.bn2.Forward(b.conv2.Forward(y))
	if b.downsample != nil {
		x = b.downsample.Forward(x)
	}
	return autograd.ReLU(autograd.Add(y, x))
}

// resNet18 is torchvision's resnet18.
type resNet18 struct {
	nn.Container
	stem, body, pool nn.Module
	fc               *nn.LinearLayer
}

func newResNet18(classes int) *resNet18 {
	m := &resNet18{}
	conv := nn.Add(&m.Container, "conv1", nn.Conv2d(3, 64, 7, nn.ConvOptions{Stride: 2, Padding: 3, NoBias: true}))
	bn := nn.Add(&m.Container, "bn1", nn.BatchNorm2d(64))
	m.stem = nn.Sequential(conv, bn, nn.ReLU(), nn.MaxPool2d(3, nn.PoolOptions{Stride: 2, Padding: 1}))
	var stages []nn.Module
	in := 64
	for i, out := range []int{64, 128, 256, 512} {
		stride := min(i+1, 2)
		stages = append(stages, nn.Add(&m.Container, fmt.Sprint("layer", i+1), nn.Sequential(newBasicBlock(in, out, stride), newBasicBlock(out, out, 1))))
		in = out
	}
	m.body, m.pool = nn.Sequential(stages...), nn.AdaptiveAvgPool2d(1, 1)
	m.fc = nn.Add(&m.Container, "fc", nn.Linear(512, classes))
	return m
}

func (m *resNet18) Forward(x *autograd.Variable) *autograd.Variable {
	y := m.pool.Forward(m.body.Forward(m.stem.Forward(x)))
	return m.fc.Forward(autograd.Reshape(y, y.Shape()[0], 512))
}

// resNetTraining is what testdata/resnet.py wrote: sizes, and files of float32 numbers.
type resNetTraining struct {
	Version              string
	Batch, Size, Classes int
	Names                []string // of the parameters, in the order of the files
	Labels               []int64
	Losses               []float64
}

// trainResNet runs the script; the test is skipped where Python has no torch.
func trainResNet(t *testing.T, dir string) (r resNetTraining) {
	t.Helper()
	if err := json.Unmarshal(testpython.Output(t, nil, "testdata/resnet.py", dir), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func readFloats(t *testing.T, path string) []float32 {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, len(file)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(file[4*i:]))
	}
	return v
}

// distance is |a-b| / |b|.
func distance(a []float64, b []float32) float64 {
	var d, n float64
	for i, v := range b {
		d += (a[i] - float64(v)) * (a[i] - float64(v))
		n += float64(v) * float64(v)
	}
	return math.Sqrt(d / n)
}

// A ResNet-18 with PyTorch's weights has its logits, its gradients, and its losses over 20
// steps of AdamW.
func TestResNetParityWithPyTorch(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a ResNet-18")
	}
	dir := t.TempDir()
	want := trainResNet(t, dir)
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	net := newResNet18(want.Classes)
	if err := nn.Place(net, dev, 1); err != nil {
		t.Fatal(err)
	}
	weights, grads := readFloats(t, filepath.Join(dir, "weights")), readFloats(t, filepath.Join(dir, "grads"))
	state := nn.State(net)
	for i, p := range net.Parameters() {
		if i >= len(want.Names) || p.Name() != want.Names[i] {
			t.Fatalf("parameter %d is %v, of %d in PyTorch", i, p, len(want.Names))
		}
		n := p.Shape().Len()
		state[p.Name()] = autograd.FromSlice(dev, weights[:n], p.Shape()...)
		weights = weights[n:]
	}
	if err := nn.LoadState(t.Context(), net, state); err != nil {
		t.Fatal(err)
	}
	input := autograd.FromSlice(dev, readFloats(t, filepath.Join(dir, "input")), want.Batch, 3, want.Size, want.Size)
	labels := autograd.FromLabels(dev, want.Labels)
	opt := optim.NewAdamW(net.Parameters(), optim.AdamWOptions{LR: 1e-4})
	for step, w := range want.Losses {
		logits := net.Forward(input)
		loss := nn.CrossEntropyLoss(logits, labels)
		if step == 0 {
			if d := distance(read(t, logits), readFloats(t, filepath.Join(dir, "logits"))); !(d <= 1e-4) {
				t.Errorf("logits are off by %.2g", d)
			}
		}
		if err := loss.Backward(); err != nil {
			t.Fatal(err)
		}
		if step == 0 {
			worst := 0.0
			for _, p := range net.Parameters() {
				n := p.Shape().Len()
				d := distance(read(t, p.Grad()), grads[:n])
				if worst = max(worst, d); !(d <= 1e-4) {
					t.Errorf("the gradient of %s is off by %.2g", p.Name(), d)
				}
				grads = grads[n:]
			}
			t.Logf("PyTorch %s: gradients are off by at most %.2g", want.Version, worst)
		}
		if got := loss.Item(); !(math.Abs(got-w) <= 1e-3*max(1, w)) {
			t.Errorf("step %d: the loss is %v, PyTorch's %v", step, got, w)
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		opt.ZeroGrad()
	}
	if n := nn.State(net)["bn1.num_batches_tracked"].Item(); n != float64(len(want.Losses)) {
		t.Errorf("%v batches tracked, want %d", n, len(want.Losses))
	}
}

// A shape that does not fit within a nested model names the layer.
func TestMisfitWithinResNet(t *testing.T) {
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	net := newResNet18(10)
	bad := nn.Conv2d(64, 64, 3)
	bad.Weight = nn.NewUnplacedParameter("weight", nn.Constant(0), device.Float32, 64, 63, 3, 3)
	block := newBasicBlock(64, 64, 1)
	block.conv2.Weight = bad.Weight
	nn.Add(&net.Container, "layer5", nn.Sequential(block))
	if err := nn.Place(net, dev, 1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		e, ok := recover().(*device.ShapeError)
		if want := "layer5.0.conv2: Conv2d: shapes [1 64 4 4] and [64 63 3 3] do not fit"; !ok || e.Error() != want {
			t.Errorf("%v, want %s", e, want)
		}
	}()
	block.Forward(autograd.Zeros(dev, device.Float32, 1, 64, 4, 4))
}
