package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/testkit"
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

// runAll runs a case on all ranks and returns rank 0's checks, by quantity.
func runAll(t *testing.T, path string) map[string]check {
	t.Helper()
	checks := map[string]check{}
	commtest.OnRanks(t, ranks, nil, func(pg *comm.ProcessGroup) error {
		list, err := run(t.Context(), pg, path)
		for _, c := range list {
			checks[c.quantity] = c
		}
		return err
	})
	return checks
}

// TestParityWithPyTorch trains all small cases and checks the limits. Then it changes one element of each
// recording, and checks that only the quantity to which the element belongs misses its limit.
func TestParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	files := record(t)
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			checks := runAll(t, path)
			if len(checks) != 4 {
				t.Errorf("%d checks, want 4", len(checks))
			}
			for _, c := range checks {
				if !c.ok() || c.buckets < 3 {
					t.Errorf("%v with %d buckets; want it within its limit, with a bucket for each layer", c, c.buckets)
				}
			}
		})
	}
	for tensor, quantity := range map[string]string{"gradient/2.bias": "first gradients", "loss": "losses", "final/4.weight": "final parameters"} {
		for _, path := range files {
			t.Run(fmt.Sprintf("%s/%s is off", filepath.Base(path), tensor), func(t *testing.T) {
				for _, c := range runAll(t, changeElement(t, path, tensor)) {
					if c.ok() == (c.quantity == quantity) {
						t.Error(c)
					}
				}
			})
		}
	}
}

// changeElement copies a recording, adds 1e-4 to the first element of a tensor, and returns the path of
// the copy.
func changeElement(t *testing.T, path, tensor string) string {
	t.Helper()
	r, err := openRecording(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	e := r.Tensors()[tensor]
	switch at := data[e.From:]; e.DType {
	case "F32":
		x := math.Float32frombits(binary.LittleEndian.Uint32(at))
		binary.LittleEndian.PutUint32(at, math.Float32bits(x+1e-4))
	case "F64":
		x := math.Float64frombits(binary.LittleEndian.Uint64(at))
		binary.LittleEndian.PutUint64(at, math.Float64bits(x+1e-4))
	default:
		t.Fatalf("tensor %q is of %q", tensor, e.DType)
	}
	changed := filepath.Join(t.TempDir(), "changed.safetensors")
	if err := os.WriteFile(changed, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return changed
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
