package hf_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/optim"
)

// expected is a file of the results of PyTorch.
type expected struct {
	*safetensors.File
	t   *testing.T
	dev device.Device
}

func (e expected) variable(name string) *autograd.Variable {
	info := e.Tensors()[name]
	return autograd.FromBytes(e.dev, info.DType.Device(), info.Shape, must.New(e.Read(name)))
}

func (e expected) numbers(name string) []float64 {
	return must.New(e.variable(name).Read(e.t.Context()))
}

// off returns the largest difference between got and want, relative to the largest element of want.
func off(got, want []float64) float64 {
	var most, size float64
	for i, w := range want {
		most, size = max(most, math.Abs(got[i]-w)), max(size, math.Abs(w))
	}
	return most / size
}

// A folder of each architecture has PyTorch's logits and gradients, and its losses over 20 steps. Saved again, its weights
// and its config have the same bytes.
func TestParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	testkit.RunPython(t, nil, "testdata/models.py", dir)
	dev := must.New(comm.OpenDevice(nil))
	defer dev.Close()
	for _, entry := range must.New(os.ReadDir(dir)) {
		for _, recompute := range []decoder.Recompute{"", decoder.RecomputeCheap, decoder.RecomputeBlocks} {
			name := entry.Name()
			if recompute != "" {
				name += ", recomputed " + string(recompute)
			}
			t.Run(name, func(t *testing.T) {
				testFolder(t, dev, filepath.Join(dir, entry.Name()), recompute)
			})
		}
	}
}

func testFolder(t *testing.T, dev device.Device, dir string, recompute decoder.Recompute) {
	e := expected{must.New(safetensors.Open(filepath.Join(dir, "expected.safetensors"))), t, dev}
	defer e.Close()
	f, err := hf.Load(dir, dev, &hf.LoadOptions{Recompute: recompute})
	if err != nil {
		t.Fatal(err)
	}
	again := t.TempDir()
	if err := f.Save(t.Context(), again, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"model.safetensors", "config.json"} {
		if !bytes.Equal(must.New(os.ReadFile(filepath.Join(dir, name))), must.New(os.ReadFile(filepath.Join(again, name)))) {
			t.Errorf("%s was saved with other bytes than it had", name)
		}
	}
	opt := must.New(optim.NewAdamW(f.Model.Parameters(), &optim.AdamWOptions{LR: 1e-3, Betas: [2]float64{0.9, 0.95}, WeightDecay: 0.1}))
	tokens, losses := e.variable("tokens"), e.numbers("losses")
	var lossOff, gradOff, logitsOff float64
	for step, want := range losses {
		rows := autograd.Reshape(autograd.Slice(tokens, 0, step, step+1, 1), tokens.Shape()[1:]...)
		n := rows.Shape()[1]
		ids, next := autograd.Slice(rows, 1, 0, n-1, 1), autograd.Slice(rows, 1, 1, n, 1)
		if step == 0 {
			autograd.NoGrad(dev, func() {
				logitsOff = off(must.New(f.Model.Forward(ids, nil).Read(t.Context())), e.numbers("logits"))
			})
		}
		opt.ZeroGrad()
		loss := f.Model.Loss(ids, next, nil)
		if err := loss.Backward(nil); err != nil {
			t.Fatal(err)
		}
		lossOff = max(lossOff, math.Abs(loss.Item()-want)/want)
		for _, p := range f.Model.Parameters() {
			if step > 0 {
				break
			}
			gradOff = max(gradOff, off(must.New(p.Grad().Read(t.Context())), e.numbers("grad."+p.Name())))
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v: the logits are off by %.1e, the gradients by at most %.1e, the losses by at most %.1e", dev, logitsOff, gradOff, lossOff)
	if !(logitsOff <= 2e-6 && gradOff <= 1e-5 && lossOff <= 1e-6) {
		t.Errorf("the logits are off by %g, the gradients by %g, the losses by %g, want at most 2e-6, 1e-5 and 1e-6", logitsOff, gradOff, lossOff)
	}
}
