package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/goddp/goddp/test/internal/compare"
)

// check is a measured quantity and its limit.
type check struct {
	name     string // of the case
	buckets  int
	quantity string
	measured float64
	limit    limit
}

// row formats a line of the table. The columns are case, buckets, quantity, measured, limit, verdict,
// and the gap from which the limit is computed.
func row(columns ...any) string {
	return strings.TrimRight(fmt.Sprintf("%-18s %7v  %-18s %9v %9v  %-6s %s", columns...), " ")
}

// ok reports whether the limit is met. It returns false for NaN.
func (c check) ok() bool { return c.measured <= c.limit.value }

func (c check) String() string {
	verdict, basis := "ok", ""
	if !c.ok() {
		verdict = "MISSED"
	}
	if c.limit.gap > 0 {
		basis = fmt.Sprintf("3 x %.2g", c.limit.gap)
	}
	number := func(x float64) string { return fmt.Sprintf("%.2g", x) }
	return row(c.name, c.buckets, c.quantity, number(c.measured), number(c.limit.value), verdict, basis)
}

// limit is the largest allowed value of a quantity. A limit may be three times a gap, which is the
// difference that another order of a batch's samples makes in PyTorch; gap is 0 for a fixed limit.
type limit struct{ value, gap float64 }

func fixed(x float64) limit        { return limit{value: x} }
func threeTimes(gap float64) limit { return limit{value: 3 * gap, gap: gap} }

// limits returns the limits of the first step's gradients, of all losses, and of the final parameters.
func (t *training) limits() (gradients, losses, parameters limit) {
	switch {
	case t.DType == "float64": // rounding is negligible: only semantics can make a difference
		return fixed(1e-9), fixed(1e-9), fixed(1e-9)
	case t.TF32: // operands are rounded to 11 bits, so no fixed limit would be tight
		return threeTimes(t.Gap.Gradient), threeTimes(t.Gap.Loss), threeTimes(t.Gap.Parameter)
	default:
		return fixed(1e-5), threeTimes(t.Gap.Loss), threeTimes(t.Gap.Parameter)
	}
}

// judge compares the outcome got of rank 0, and the shared part of all ranks' outcomes, with PyTorch's.
func judge[T float32 | float64](rec *recording, got *outcome, ranks []shared) ([]check, error) {
	gradients, err := readAll[T](rec, "gradient", got.names)
	if err != nil {
		return nil, err
	}
	final, err := readAll[T](rec, "final", got.names)
	if err != nil {
		return nil, err
	}
	losses, err := read[float64](rec, "loss")
	if err != nil {
		return nil, err
	}
	var digests []string
	for _, r := range ranks {
		digests = append(digests, r.Digest)
	}
	ofGradients, ofLosses, ofParameters := rec.limits()
	checks := []check{
		{rec.Name, got.buckets, "losses", maxLossDifference(losses, ranks), ofLosses},
		{rec.Name, got.buckets, "final parameters", compare.Worst(final, got.final), ofParameters},
		{rec.Name, got.buckets, "ranks that differ", float64(compare.Differing(digests)), fixed(0)},
	}
	if got.gradients != nil {
		checks = append(checks, check{rec.Name, got.buckets, "first gradients", compare.Worst(gradients, got.gradients), ofGradients})
	}
	return checks, nil
}

// maxLossDifference returns the largest difference of any step between the loss of want and the mean
// loss of the ranks.
func maxLossDifference(want []float64, ranks []shared) float64 {
	greatest := 0.0
	for step, w := range want {
		mean := 0.0
		for _, r := range ranks {
			mean += r.Losses[step] / float64(len(ranks))
		}
		greatest = max(greatest, math.Abs(mean-w))
	}
	return greatest
}
