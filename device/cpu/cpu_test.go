package cpu

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/devicetest"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// open makes a device with several threads, so that kernels divide their work even on a machine
// with one core.
func open(t *testing.T) device.Device {
	return New(&Options{Threads: 3, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

// Without -long the kernels are checked in Float32, and the updates also in a type that has master weights. All divide their work
// by one function, so the race detector sees some of them.
func TestConformance(t *testing.T) {
	divided := []string{"Sum", "MatMul", "LinearGrad", "ScatterAdd", "Softmax", "CrossEntropy", "SGD", "AdamW", "Uniform"}
	for _, c := range devicetest.Cases() {
		name, dt, typed := strings.Cut(c.Name, "/")
		if testkit.Race && typed && !slices.Contains(divided, name) {
			continue
		}
		if typed && dt != "float32" && !testkit.IsLong() && !(dt == "bfloat16" && slices.Contains([]string{"SGD", "AdamW", "RMSProp"}, name)) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			d, check := open(t), c.Check
			if !testkit.IsLong() {
				check = c.CheckQuickly
			}
			if err := check(t.Context(), d); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// The matrix products in pure Go pass the conformance suite where OpenBLAS does the others.
func TestProductsInGo(t *testing.T) {
	testkit.Need(t, openBLASLibrary)
	d := New(&Options{BLAS: Gonum})
	for _, c := range devicetest.Cases() {
		name, dt, _ := strings.Cut(c.Name, "/")
		if isProduct := strings.HasPrefix(name, "MatMul") || strings.HasPrefix(name, "Linear") || name == "NaN"; isProduct && (dt == "float32" || testkit.IsLong()) {
			if err := c.CheckQuickly(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	}
}

var openBLASLibrary = testkit.Requires("OpenBLAS", func() error {
	_, err := openBLAS()
	return err
})
