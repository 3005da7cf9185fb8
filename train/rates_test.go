package train_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
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
		return train.Run(t.Context(), pg, &train.Config{
			Model: model, Optimizer: must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1e-3})), Epochs: 1, ClipNorm: 1e-3,
			Data: must.New(data.NewLoader(set, pg, &data.LoaderOptions{Batch: 4})), Log: file, LogEvery: 1, PeakFLOPS: 1e9,
			Loss: func(b *data.Batch) *autograd.Variable { return autograd.Sum(model.Forward(b.Vars[0])) },
		})
	})
	lines := strings.Split(strings.TrimSpace(string(must.New(os.ReadFile(file)))), "\n")
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
			"flops_per_second":  6 * 11 * 6 * 4 * v["samples_per_second"],
			"mfu":               v["flops_per_second"] / 2e9,
			"grad_norm":         16 * math.Sqrt(6), // token 0 occurs 16 times on each rank
		} {
			if got := v[name]; !(math.Abs(got-want) < 1e-6*want) {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
}
