package autograd_test

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/torchtest"
)

//go:embed testdata/attention_error.py
var attentionErrorScript string

// halfAttention is one case of attention in a 16-bit type, in the format that attention_error.py reads.
type halfAttention struct {
	DType    string    `json:"dtype"`
	Shape    [4]int    `json:"shape"` // [B H T D] of every array
	Causal   bool      `json:"causal"`
	In       [3][]byte `json:"in"` // q, k, v
	Upstream []byte    `json:"upstream"`
	Out      [4][]byte `json:"out"` // the result, and the gradients of q, k and v
}

// deviation is the difference of an array from its float64 reference: the maximum error of an element,
// and the root mean square error.
type deviation struct{ Max, RMS float64 }

// float32Error bounds the float32 error of a sum of a few hundred products of normal numbers.
const float32Error = 1e-5

// TestHalfAttentionIsAsExactAsPyTorchs compares attention in 16-bit types with float64 attention on the
// same standard normal inputs. The maximum error and the root mean square error are at most twice those
// of PyTorch's attention in the same type on the same GPU. Errors below float32Error always pass: where
// the exact gradient is 0, such as that of a softmax of one score, both libraries have only such errors.
func TestHalfAttentionIsAsExactAsPyTorchs(t *testing.T) {
	testkit.Long(t)
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if dev.String() == "cpu" {
		t.Skip("the CPU has no attention of 16-bit types")
	}
	rows := []int{1, 63, 64, 192, 1000, 1024}
	rng := rand.New(rand.NewPCG(1, 2))
	var cases []halfAttention
	for _, dt := range []device.DType{device.Float16, device.BFloat16} {
		for _, causal := range []bool{false, true} {
			for _, size := range []int{64, 128} {
				for _, n := range rows {
					cases = append(cases, attendInHalf(t, dev, rng, dt, causal, [4]int{1, 2, n, size}))
				}
			}
		}
	}
	var info struct {
		Version, Device string
		Cases           [][4]struct{ Ours, Theirs deviation } // for the result, and for the gradients of q, k and v
	}
	torchtest.Run(t, attentionErrorScript, map[string]any{"cases": cases}, &info)
	if info.Device == "cpu" {
		t.Skip("PyTorch has no GPU")
	}

	exceeds := func(ours, theirs float64) bool { return !(ours <= 2*theirs+float32Error) }
	var table strings.Builder
	fmt.Fprintf(&table, "%-9s %-6s %4s %5s", "", "causal", "size", "rows")
	for _, name := range []string{"o", "dQ", "dK", "dV"} {
		fmt.Fprintf(&table, " | %-2s %-8s %-5s %-8s %-5s", name, "largest", "ratio", "RMS", "ratio")
	}
	for i, c := range cases {
		fmt.Fprintf(&table, "\n%-9s %-6t %4d %5d", c.DType, c.Causal, c.Shape[3], c.Shape[2])
		for j, off := range info.Cases[i] {
			fmt.Fprintf(&table, " |    %8.2e %5.2f %8.2e %5.2f", off.Ours.Max, ratio(off.Ours.Max, off.Theirs.Max), off.Ours.RMS, ratio(off.Ours.RMS, off.Theirs.RMS))
			if exceeds(off.Ours.Max, off.Theirs.Max) || exceeds(off.Ours.RMS, off.Theirs.RMS) {
				t.Errorf("%s, causal %t, %v: the error of %s is %.3g at most, PyTorch's %.3g; its root mean square %.3g, PyTorch's %.3g",
					c.DType, c.Causal, c.Shape, []string{"the result", "the gradient for q", "the gradient for k", "the gradient for v"}[j],
					off.Ours.Max, off.Theirs.Max, off.Ours.RMS, off.Theirs.RMS)
			}
		}
	}
	t.Logf("errors against float64, and their ratios to those of PyTorch %s on %s:\n%s", info.Version, info.Device, &table)
}

// ratio returns a/b, or 0 if a is below float32Error.
func ratio(a, b float64) float64 {
	if max(a, b) < float32Error {
		return 0
	}
	return a / b
}

// attendInHalf draws inputs, and computes their attention and its gradients on dev.
func attendInHalf(t *testing.T, dev device.Device, rng *rand.Rand, dt device.DType, causal bool, shape [4]int) halfAttention {
	c := halfAttention{DType: dt.String(), Shape: shape, Causal: causal}
	read := func(v *autograd.Variable) []byte {
		data, err := v.Bytes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	autograd.Scope(dev, func() {
		normal := func() *autograd.Variable {
			numbers := make([]float64, device.Shape(shape[:]).Len())
			for i := range numbers {
				numbers[i] = rng.NormFloat64()
			}
			return autograd.Cast(autograd.FromSlice(dev, numbers, shape[:]...), dt).Detach()
		}
		var x [3]*autograd.Variable
		for i := range x {
			x[i] = normal()
			c.In[i] = read(x[i])
			x[i].RequireGrad()
		}
		g := normal()
		c.Upstream = read(g)
		o := autograd.ScaledDotProductAttention(x[0], x[1], x[2], &autograd.AttentionOptions{Causal: causal})
		if err := o.Backward(&autograd.BackwardOptions{Gradient: g}); err != nil {
			t.Fatal(err)
		}
		c.Out[0] = read(o)
		for i := range x {
			c.Out[i+1] = read(x[i].Grad())
		}
	})
	return c
}
