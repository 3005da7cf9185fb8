package main

import (
	"math"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

const ranks = 2

// record runs torch_parity.py, which trains all small cases with PyTorch, and returns its files.
func record(t *testing.T) []string {
	t.Helper()
	testkit.Need(t, testkit.Python("import torch.distributed as d; d.TCPStore"))
	dir := t.TempDir()
	for _, p := range testkit.World(t, ranks, func(int) *exec.Cmd {
		return exec.CommandContext(t.Context(), testkit.Interpreter(), "torch_parity.py", "--out", dir)
	}) {
		if code := p.Wait(); code != 0 {
			t.Fatalf("torch_parity.py: exit code %d", code)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatalf("torch_parity.py wrote no files: %v", err)
	}
	return files
}

// TestParityWithPyTorch trains all small cases and checks the limits.
func TestParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	for _, path := range record(t) {
		commtest.OnRanks(t, ranks, nil, func(pg *comm.ProcessGroup) error {
			checks, err := run(t.Context(), pg, path)
			want := 4
			if filepath.Base(path) == "fsdp.safetensors" {
				want = 3 // the ranks divide the gradients
			}
			if pg.Rank() == 0 && len(checks) != want {
				t.Errorf("%s: %d checks, want %d", path, len(checks), want)
			}
			for _, c := range checks {
				if !c.ok() || c.buckets < 3 {
					t.Errorf("%s: %v with %d buckets; want it within its limit, with a bucket for each layer", path, c, c.buckets)
				}
			}
			return err
		})
	}
}

func TestLimitsByTypeAndGap(t *testing.T) {
	var gap training
	gap.Gap.Gradient, gap.Gap.Loss, gap.Gap.Parameter = 1, 2, 3
	float64s, float32s, tf32 := gap, gap, gap
	float64s.DType, float32s.DType, tf32.DType = "float64", "float32", "float32"
	tf32.TF32 = true
	for want, c := range map[[3]float64]training{{1e-9, 1e-9, 1e-9}: float64s, {1e-5, 6, 9}: float32s, {3, 6, 9}: tf32} {
		g, l, p := c.limits()
		if got := [3]float64{g.value, l.value, p.value}; got != want {
			t.Errorf("%s, TF32 %v: limits %v, want %v", c.DType, c.TF32, got, want)
		}
	}
}

func TestNaNMissesTheLimit(t *testing.T) {
	nan := math.NaN()
	if c := (check{measured: nan, limit: fixed(1)}); c.ok() {
		t.Errorf("%v meets the limit %v", c.measured, c.limit.value)
	}
	if x := maxLossDifference([]float64{1, 1}, []shared{{Losses: []float64{nan, 1}}}); !math.IsNaN(x) {
		t.Errorf("the difference of losses with a NaN is %v", x)
	}
}
