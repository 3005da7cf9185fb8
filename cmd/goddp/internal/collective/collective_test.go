package collective

import (
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// collective returns the collective with a name, which must exist.
func collective(t *testing.T, name string) *Collective {
	t.Helper()
	c, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFindAcceptsSeveralSpellings(t *testing.T) {
	for name, want := range map[string]string{
		"all_reduce": "all_reduce", "allreduce": "all_reduce", "AllReduce": "all_reduce", "all_reduce_perf": "all_reduce", "all-gather": "all_gather",
		"alltoall_perf": "all_to_all", "AllToAll": "all_to_all", "ReduceScatter": "reduce_scatter", "sendrecv": "sendrecv", "SendRecv": "sendrecv",
		"Reduce": "reduce", "broadcast_perf": "broadcast",
	} {
		if got := collective(t, name); got.Name != want {
			t.Errorf("%q is %s, want %s", name, got.Name, want)
		}
	}
	for _, name := range []string{"", "all", "reduces", "perf"} {
		if c, err := Find(name); err == nil {
			t.Errorf("%q is %s", name, c.Name)
		}
	}
	for name, want := range map[string]device.DType{"float": device.Float32, "float32": device.Float32, "half": device.Float16, "double": device.Float64, "bfloat16": device.BFloat16} {
		if got, err := FindType(name); got != want || err != nil {
			t.Errorf("%q is %v, %v, want %v", name, got, err, want)
		}
	}
	for name, want := range map[string]comm.ReduceOp{"sum": comm.Sum, "prod": comm.Product, "product": comm.Product} {
		if got, err := FindOp(name); got != want || err != nil {
			t.Errorf("%q is %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := FindType("int8"); err == nil {
		t.Error("int8 is an element type")
	}
}

// The factors are those of nccl-tests' doc/PERFORMANCE.md.
func TestBusFactors(t *testing.T) {
	for name, want := range map[string]map[float64]float64{
		"all_reduce":     {1: 0, 2: 1, 4: 1.5, 8: 1.75},
		"all_gather":     {1: 0, 2: 0.5, 4: 0.75, 8: 0.875},
		"reduce_scatter": {1: 0, 2: 0.5, 4: 0.75, 8: 0.875},
		"all_to_all":     {1: 0, 2: 0.5, 4: 0.75, 8: 0.875},
		"broadcast":      {1: 1, 2: 1, 4: 1},
		"reduce":         {1: 1, 2: 1, 4: 1},
		"sendrecv":       {2: 1, 4: 1},
	} {
		for ranks, factor := range want {
			if got := collective(t, name).busFactor(ranks); got != factor {
				t.Errorf("%s, %v ranks: factor %v, want %v", name, ranks, got, factor)
			}
		}
	}
}

func TestCountsOfSizes(t *testing.T) {
	for _, c := range []struct {
		collective     string
		min, max, step int
		want           []int
	}{
		{"all_reduce", 1 << 10, 16 << 10, 4, []int{256, 1024, 4096}},
		{"all_reduce", 1 << 10, 20 << 10, 4, []int{256, 1024, 4096}},
		{"all_reduce", 1, 16, 2, []int{1, 2, 4}},
		{"all_gather", 8, 64, 2, []int{1, 2, 5}}, // 3 ranks: 12 bytes for each count
		{"sendrecv", 8, 8, 2, []int{2}},
		{"broadcast", 1 << 40, math.MaxInt, 1 << 20, []int{1 << 38, 1 << 58}},
	} {
		cfg := Config{Collective: collective(t, c.collective), MinBytes: c.min, MaxBytes: c.max, StepFactor: c.step, DType: device.Float32}
		if got := cfg.counts(3); !slices.Equal(got, c.want) {
			t.Errorf("%s from %d to %d: counts %v, want %v", c.collective, c.min, c.max, got, c.want)
		}
	}
}
