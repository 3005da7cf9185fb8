package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// pytorch is the file that testdata/gpt2.py wrote.
type pytorch struct {
	file *safetensors.File
	t    *testing.T
}

// variable returns a tensor of the file.
func (p pytorch) variable(dev device.Device, name string) *autograd.Variable {
	info := p.file.Tensors()[name]
	elements, err := p.file.Read(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return autograd.FromBytes(dev, info.DType.Device(), info.Shape, elements)
}

const parityBatch, paritySteps = 4, 20

// pytorchVar is the variable by which the test gives the path of PyTorch's file to the processes it starts.
const pytorchVar = "GODDP_TEST_GPT_PYTORCH"

// paritySize returns the size of GPT-2 that GODDP_TEST_GPT names, such as 124M, or else a small one.
func paritySize(t *testing.T) decoder.GPT2Config {
	name := os.Getenv("GODDP_TEST_GPT")
	if name == "" {
		return decoder.GPT2Config{Vocab: 97, Positions: 24, Layers: 3, Heads: 4, Hidden: 48}
	}
	c, ok := sizes[name]
	if !ok {
		t.Fatalf("GODDP_TEST_GPT is %q, want a size of GPT-2", name)
	}
	return c
}

// runPyTorch runs gpt2.py, which writes a file, and returns the file's path. It skips the test if Python
// has no torch.
func runPyTorch(t *testing.T, c decoder.GPT2Config) (path string) {
	t.Helper()
	if path := os.Getenv(pytorchVar); path != "" {
		return path
	}
	path = filepath.Join(t.TempDir(), "gpt2.safetensors")
	args := []string{"testdata/gpt2.py", path}
	for _, n := range []int{c.Vocab, c.Positions, c.Layers, c.Heads, c.Hidden, parityBatch, paritySteps} {
		args = append(args, strconv.Itoa(n))
	}
	if strings.HasPrefix(os.Getenv("GODDP_DEVICE"), "cuda") {
		args = append(args, "cuda")
	}
	testkit.RunPython(t, nil, args...)
	return path
}

// off returns the largest relative error |got - want| / |want| so far, in Euclidean norms, against a tensor of the file from element
// first on. It returns an error if this error exceeds 1e-4.
func (p pytorch) off(so float64, got *autograd.Variable, name string, first int) (float64, error) {
	g, err := got.Read(p.t.Context())
	if err != nil {
		return 0, err
	}
	want, err := p.variable(got.Device(), name).Read(p.t.Context())
	if err != nil {
		return 0, err
	}
	var distance, norm float64
	for i, w := range want[first : first+len(g)] {
		distance += (g[i] - w) * (g[i] - w)
		norm += w * w
	}
	d := math.Sqrt(distance / norm)
	if !(d <= 1e-4) {
		return d, fmt.Errorf("%s is off by %g of its norm", name, d)
	}
	return max(so, d), nil
}

// TestParityWithPyTorch compares logits, gradients and losses with PyTorch's, for the same
// weights and batches, on one rank and on two and four ranks that divide each batch. The following
// command compares GPT-2 with 124M parameters, on one, two and four GPUs if the machine has them:
//
//	GODDP_DEVICE=cuda GODDP_TEST_GPT=124M go test ./examples/gpt -long -run TestParityWithPyTorch
func TestParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	c := paritySize(t)
	path := runPyTorch(t, c)
	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	want := pytorch{file, t}
	commtest.OnDeviceOf(t, []int{1, 2, parityBatch}, []string{pytorchVar + "=" + path}, func(pg *comm.ProcessGroup) error {
		return want.compare(t, c, pg)
	})
}

// compare trains on this rank and compares it with PyTorch.
func (p pytorch) compare(t *testing.T, c decoder.GPT2Config, pg *comm.ProcessGroup) error {
	ctx, dev := t.Context(), pg.Device()
	net := must.New(decoder.NewGPT2(c))
	if err := nn.Place(net, dev, 0); err != nil {
		return err
	}
	state := map[string]*autograd.Variable{}
	for _, param := range net.Parameters() {
		state[param.Name()] = p.variable(dev, "param."+param.Name())
	}
	if err := nn.LoadState(ctx, net, state); err != nil {
		return err
	}
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	opt := must.New(newOptimizer(net.Parameters(), 0.1, false))
	opt.SetLR(1e-3)
	losses, err := p.variable(dev, "losses").Read(ctx)
	if err != nil {
		return err
	}
	tokens, err := p.variable(dev, "tokens").Read(ctx)
	if err != nil {
		return err
	}
	each := parityBatch / pg.Size()
	var logitsOff, gradOff, lossOff float64
	for step, want := range losses {
		var ids, next []int64
		for row := range each {
			at := ((step*pg.Size()+pg.Rank())*each + row) * (c.Positions + 1)
			for j := range c.Positions {
				ids, next = append(ids, int64(tokens[at+j])), append(next, int64(tokens[at+j+1]))
			}
		}
		in := autograd.Reshape(autograd.FromSlice(dev, ids), each, c.Positions)
		out := autograd.Reshape(autograd.FromSlice(dev, next), each, c.Positions)
		if step == 0 {
			autograd.NoGrad(dev, func() { logitsOff, err = p.off(0, net.Forward(in, nil), "logits", pg.Rank()*len(ids)*c.Vocab) })
			if err != nil {
				return err
			}
		}
		loss := model.Run(func() *autograd.Variable { return net.Loss(in, out, nil) })
		if err := loss.Backward(nil); err != nil {
			return err
		}
		for _, param := range net.Parameters() {
			if step > 0 {
				break
			}
			if gradOff, err = p.off(gradOff, param.Grad(), "grad."+param.Name(), 0); err != nil {
				return err
			}
		}
		if _, err := optim.ClipGradNorm(model.Parameters(), 1, nil); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		all, err := metrics.Reduce(ctx, pg, metrics.Mean(loss.Item(), each))
		if err != nil {
			return err
		}
		lossOff = max(lossOff, math.Abs(all[0].Value-want)/want)
		if !(lossOff <= 1e-3) {
			return fmt.Errorf("%d ranks, step %d: the loss is %v, PyTorch's %v", pg.Size(), step, all[0].Value, want)
		}
	}
	t.Logf("%v, rank %d of %d: the logits are off by %.1e, the gradients by at most %.1e, the losses by at most %.1e",
		dev, pg.Rank(), pg.Size(), logitsOff, gradOff, lossOff)
	return nil
}
