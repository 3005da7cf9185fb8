package nn_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// basicBlock is ResNet's block of two convolutions, with torchvision's names.
type basicBlock struct {
	nn.Container
	conv1, conv2 *nn.ConvLayer
	bn1, bn2     *nn.BatchNormLayer
	downsample   *nn.Sequence // may be nil
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

// resNetTraining is PyTorch's training, which testdata/resnet.py wrote to dir: sizes, and files of
// float32 numbers.
type resNetTraining struct {
	dir                  string
	Version              string
	Batch, Size, Classes int
	Names                []string // the parameters' names, in the order of the files
	Labels               []int64
	Losses               []float64
}

// resNetVar is the environment variable that names dir in the processes that the test starts.
const resNetVar = "GODDP_TEST_RESNET_PYTORCH"

// trainResNet runs the script. It skips the test if Python has no torch.
func trainResNet(t *testing.T) (r resNetTraining) {
	t.Helper()
	if r.dir = os.Getenv(resNetVar); r.dir == "" {
		r.dir = t.TempDir()
		testkit.RunPython(t, nil, "testdata/resnet.py", r.dir)
	}
	text, err := os.ReadFile(filepath.Join(r.dir, "training.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if testkit.Race {
		r.Losses = r.Losses[:3] // the kernels take minutes for all, without a race that the first steps have not
	}
	return r
}

// floats returns the numbers in a file.
func (r resNetTraining) floats(name string) ([]float32, error) {
	file, err := os.ReadFile(filepath.Join(r.dir, name))
	v := make([]float32, len(file)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(file[4*i:]))
	}
	return v, err
}

// distance returns |a-b| / |b|.
func distance(a []float64, b []float32) float64 {
	var d, n float64
	for i, v := range b {
		d += (a[i] - float64(v)) * (a[i] - float64(v))
		n += float64(v) * float64(v)
	}
	return math.Sqrt(d / n)
}

// A ResNet-18 with PyTorch's weights has PyTorch's logits, gradients, and losses over 20 steps of AdamW
// (3 under the race detector):
// on one rank, and on several ranks with a part of the batch each and synchronised BatchNorms. To run it
// on GPUs only:
//
//	GODDP_DEVICE=cuda go test ./nn -run TestResNetParityWithPyTorch
func TestResNetParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	if testing.Short() {
		t.Skip("trains a ResNet-18")
	}
	want := trainResNet(t)
	commtest.OnDeviceOf(t, []int{1, 2}, []string{resNetVar + "=" + want.dir}, func(pg *comm.ProcessGroup) error {
		return want.compare(t, pg)
	})
}

// compare trains as PyTorch did and compares the results.
func (want resNetTraining) compare(t *testing.T, pg *comm.ProcessGroup) error {
	dev, ctx := pg.Device(), t.Context()
	net := newResNet18(want.Classes)
	if err := nn.Place(net, dev, 1); err != nil {
		return err
	}
	weights, err := want.floats("weights")
	if err != nil {
		return err
	}
	state := nn.State(net)
	for i, p := range net.Parameters() {
		if i >= len(want.Names) || p.Name() != want.Names[i] {
			return fmt.Errorf("parameter %d is %v, of %d in PyTorch", i, p, len(want.Names))
		}
		n := p.Shape().Len()
		state[p.Name()] = autograd.FromSlice(dev, weights[:n], p.Shape()...)
		weights = weights[n:]
	}
	if err := nn.LoadState(ctx, net, state); err != nil {
		return err
	}
	ddp.SyncBatchNorm(net, pg)
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	input, err := want.floats("input")
	if err != nil {
		return err
	}
	logits, err := want.floats("logits")
	if err != nil {
		return err
	}
	each := want.Batch / pg.Size()
	part := func(v []float32) []float32 { // returns this rank's part
		n := len(v) / pg.Size()
		return v[pg.Rank()*n:][:n]
	}
	x := autograd.FromSlice(dev, part(input), each, 3, want.Size, want.Size)
	labels := autograd.FromLabels(dev, want.Labels[pg.Rank()*each:][:each])
	opt := must.New(optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{LR: 1e-4}))
	var logitsOff, gradOff, lossOff float64
	for step, w := range want.Losses {
		y := model.Forward(x)
		loss := nn.CrossEntropyLoss(y, labels)
		if step == 0 {
			got, err := y.Read(ctx)
			if err != nil {
				return err
			}
			if logitsOff = distance(got, part(logits)); !(logitsOff <= 1e-4) {
				return fmt.Errorf("logits are off by %.2g", logitsOff)
			}
		}
		if err := loss.Backward(); err != nil {
			return err
		}
		if step == 0 {
			if gradOff, err = want.compareGradients(ctx, net); err != nil {
				return err
			}
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		all, err := metrics.Reduce(ctx, pg, metrics.Mean(loss.Item(), each))
		if err != nil {
			return err
		}
		lossOff = max(lossOff, math.Abs(all[0].Value-w)/max(1, w))
		if !(lossOff <= 1e-3) {
			return fmt.Errorf("%d ranks, step %d: the loss is %v, PyTorch's %v", pg.Size(), step, all[0].Value, w)
		}
	}
	t.Logf("PyTorch %s, %v, rank %d of %d: the logits are off by %.1e, the gradients by at most %.1e, the losses by at most %.1e",
		want.Version, dev, pg.Rank(), pg.Size(), logitsOff, gradOff, lossOff)
	if n := nn.State(net)["bn1.num_batches_tracked"].Item(); n != float64(len(want.Losses)) {
		return fmt.Errorf("%v batches tracked, want %d", n, len(want.Losses))
	}
	return nil
}

// compareGradients returns the largest distance of a parameter's gradient from PyTorch's.
func (want resNetTraining) compareGradients(ctx context.Context, net nn.Model) (worst float64, err error) {
	grads, err := want.floats("grads")
	if err != nil {
		return 0, err
	}
	for _, p := range net.Parameters() {
		got, err := p.Grad().Read(ctx)
		if err != nil {
			return 0, err
		}
		d := distance(got, grads[:len(got)])
		if worst = max(worst, d); !(d <= 1e-4) {
			return d, fmt.Errorf("the gradient of %s is off by %.2g", p.Name(), d)
		}
		grads = grads[len(got):]
	}
	return worst, nil
}

// A shape that does not fit within a nested model names the layer and the parameter.
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
		if want := "layer5.0.conv2: Conv2d: shapes [1 64 4 4] and [64 63 3 3] do not fit (parameter layer5.0.conv2.weight)"; !ok || e.Error() != want {
			t.Errorf("%v, want %s", e, want)
		}
	}()
	block.Forward(autograd.Zeros(dev, device.Float32, 1, 64, 4, 4))
}
