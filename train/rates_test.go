package train_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

// The lines of the log have the rates of tokens and operations of all ranks, the part of their peak that is used, and the norm
// of the gradients before clipping.
func TestLogHasRates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		model := must.New(ddp.New(nn.Embedding(11, 6, nil), pg, nil))
		set := data.Each(16, []data.Field{{Name: "tokens", DType: device.Int64, Shape: device.Shape{4}}}, func(_ int, dst []device.Tensor) error {
			clear(device.Elements[int64](dst[0]))
			return nil
		})
		ones := autograd.FromSlice(pg.Device(), []float32{1, 1, 1, 1, 1, 1}, 6, 1)
		return train.Run(t.Context(), pg, &train.Config{
			Model: model, Optimizer: must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1e-3})), Epochs: 1, ClipNorm: 1e-3,
			Data: must.New(data.NewLoader(set, pg, &data.LoaderOptions{Batch: 4})), Log: file, LogEvery: 1, PeakFLOPS: 1e9,
			Evaluate: func(context.Context) ([]progress.Value, error) {
				autograd.MatMul(ones, autograd.Reshape(ones, 1, 6)) // does not count
				return nil, nil
			}, EvaluateEvery: 1,
			Loss: func(b *data.Batch) *autograd.Variable {
				return autograd.Sum(autograd.MatMul(model.Forward(b.Vars[0]), ones))
			},
		})
	})
	lines := strings.Split(strings.TrimSpace(string(must.New(os.ReadFile(file)))), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, "samples_per_second") }) // the evaluations
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2", len(lines))
	}
	for _, line := range lines {
		var v map[string]float64
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]float64{
			"tokens_per_second": 4 * v["samples_per_second"],
			"flops_per_second":  2 * 2 * 6 * 4 * v["samples_per_second"], // the product and the gradient of one operand
			"mfu":               v["flops_per_second"] / 2e9,
			"grad_norm":         16 * math.Sqrt(6), // token 0 occurs 16 times on each rank
		} {
			if got := v[name]; !(math.Abs(got-want) < 1e-6*want) {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
}
